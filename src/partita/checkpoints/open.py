"""MODEL as a checkpoint that can be run: a packaged model's name, a folder, a .gguf file or a repo id."""

from __future__ import annotations

import os
from pathlib import Path

from partita.checkpoints.packaged import PACKAGES, packaged_gguf
from partita.checkpoints.stored import StoredCheckpoint
from partita.errors import InputError
from partita.specs.catalogue import model_aliases, model_names
from partita.specs.resolve import resolve_model


def open_checkpoint(text: str) -> StoredCheckpoint:
    """Opens MODEL without reading its weights yet; a repo id is fetched first where it is not cached.

    Raises InputError where it is unknown, or known but has no weights that can be read here.
    """
    if text.lower().endswith(".gguf"):
        from partita.checkpoints.gguf import GGUFCheckpoint

        return GGUFCheckpoint(Path(os.path.expanduser(text)))
    name = model_aliases().get(text.lower(), text.lower())
    if name in PACKAGES:
        from partita.checkpoints.gguf import GGUFCheckpoint

        checkpoint = GGUFCheckpoint(packaged_gguf(name))
        checkpoint.model = checkpoint.model.model_copy(update={"name": name})
        return checkpoint
    if name not in model_names():
        from partita.checkpoints.hub import fetch, is_repo_id

        if (path := _folder(text)) is not None:
            from partita.checkpoints.folder import open_folder

            return open_folder(path)
        if is_repo_id(text):
            from partita.checkpoints.folder import open_folder

            return open_folder(fetch(text), name=text)
    model = resolve_model(text)
    raise InputError(
        "model",
        text,
        f"{model.name} can be planned, but its weights cannot be read here; "
        f"to run a model give {' or '.join(PACKAGES)}, a folder, a .gguf file or a repo id",
    )


def _folder(text: str) -> Path | None:
    try:
        path = Path(os.path.expanduser(text))
        return path if path.is_dir() else None
    except ValueError:  # no path at all, such as one with a null byte
        return None
