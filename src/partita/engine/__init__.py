"""Interpreter 2 (JAX): the program on real arrays, one copy of the weights, prefill and decode."""
