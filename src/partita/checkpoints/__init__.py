"""Checkpoints: a model's parameters by name, read slice by slice from files or memory, and its tokenizer."""
