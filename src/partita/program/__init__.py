"""The Transformer, once, over the operations that both interpreters provide. Knows no numbers."""
