"""Interpreter 1 (NumPy): the program on sizes; counts of FLOPs, bytes, messages, and their time."""
