"""Checkpoints: named tensors with their model and tokenizer. Knows nothing about meshes, layouts or JAX."""
