"""Checks predictions against programs and clocks; calibrates machines; fits profiles; measures quality."""
