"""Interpreter 1 (NumPy): the program on sizes; counts of FLOPs, bytes and messages, and the time they take."""
