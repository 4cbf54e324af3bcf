"""The scheduler on the engine's clock: an OpenAI-compatible server, its metrics."""
