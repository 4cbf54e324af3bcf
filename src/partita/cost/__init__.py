"""Interpreter 1 (NumPy): runs the program on sizes, counts FLOPs, bytes and messages, and times them."""
