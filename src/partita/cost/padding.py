"""Dims stored larger than a model has them, so that every split divides. Knows nothing about time."""

from __future__ import annotations

from collections.abc import Mapping

from partita.sharding.layout import Storage
from partita.specs.model import Model


def padded_dims(model: Model, storage: Storage, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Every dim that could be padded: its size in the model and as stored; `sizes` maps axes to chips."""
    padded = storage.padded(model, sizes)
    return {
        "heads": (model.heads, padded["K"] * padded["G"]),
        "kv_heads": (model.kv_heads, padded["K"]),
        "d_model": (model.d_model, padded["E"]),
        "d_ff": (model.d_ff, padded["F"]),
        "vocabulary": (model.vocabulary, padded["V"]),
    }


def padded_parameters(model: Model, storage: Storage, sizes: Mapping[str, int]) -> int:
    """Parameters added by padding, over all chips."""
    stored = {name: size for name, (_, size) in padded_dims(model, storage, sizes).items()}
    return model.model_copy(update=stored).parameters - model.parameters
