"""Analyses of a chosen plan: its rules, crossovers, sensitivities, comparison, other engines' flags."""
