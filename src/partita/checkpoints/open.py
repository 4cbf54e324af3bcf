"""MODEL as a checkpoint that can be run: a packaged model's name or a .gguf file."""

from __future__ import annotations

from pathlib import Path

from partita.checkpoints.gguf import GGUFCheckpoint
from partita.checkpoints.packaged import PACKAGES, packaged_gguf
from partita.errors import InputError
from partita.specs.catalogue import model_aliases
from partita.specs.resolve import resolve_model


def open_checkpoint(text: str) -> GGUFCheckpoint:
    """Opens MODEL without reading its weights yet.

    Raises InputError where it is unknown, or known but has no weights that can be read here.
    """
    if text.lower().endswith(".gguf"):
        return GGUFCheckpoint(Path(text).expanduser())
    name = model_aliases().get(text.lower(), text.lower())
    if name in PACKAGES:
        checkpoint = GGUFCheckpoint(packaged_gguf(name))
        checkpoint.model = checkpoint.model.model_copy(update={"name": name})
        return checkpoint
    model = resolve_model(text)
    raise InputError(
        "model",
        text,
        f"{model.name} can be planned, but its weights cannot be read here; "
        f"to run a model give {' or '.join(PACKAGES)}, or a .gguf file",
    )
