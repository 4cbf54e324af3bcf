"""Checks the predictions: against the traced and the compiled program."""
