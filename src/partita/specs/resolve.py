"""What a user means by MODEL: a name of the catalogue, a folder, or a file.

Only the forms are known here, not the contents: a `config.json` is read by `hugging_face/`, any other kind of
file by the reader that the caller hands in, since the rooms that read checkpoints stand above this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from partita.errors import InputError
from partita.specs import catalogue
from partita.specs.hugging_face import model_from_config
from partita.specs.model import Model
from partita.specs.wording import did_you_mean


def resolve_model(text: str, readers: Mapping[str, Callable[[Path], Model]] | None = None) -> Model:
    """The model a text names: catalogue name or alias, folder with a `config.json`, or a file.

    `readers` has what reads a file, by its suffix, such as `{".gguf": model_from_gguf}`, or by its name in a
    folder, such as `{"partita.json": ...}`. Files in `.json` are read here.

    Raises InputError on `model` where the text is none of these, and what the reader of a file raises.
    """
    readers = {".json": model_from_config, **(readers or {})}
    if text.lower() in catalogue.model_names() or text.lower() in catalogue.model_aliases():
        return catalogue.catalogue_model(text)
    try:
        path = os.path.expanduser(text)
    except ValueError:  # no path at all, such as one with a null byte
        path = text
    if os.path.isdir(path):
        for name, reader in readers.items():
            if not name.startswith(".") and os.path.isfile(os.path.join(path, name)):
                return reader(Path(path, name))
        config = os.path.join(path, "config.json")
        if not os.path.isfile(config):
            raise InputError("model", text, "this folder has no config.json; accepted: a folder that has one")
        return model_from_config(config)
    suffix = os.path.splitext(path)[1].lower()
    if suffix in readers:
        if not os.path.isfile(path):
            raise InputError("model", text, "there is no such file")
        return readers[suffix](Path(path))
    names = catalogue.model_names()
    hint = did_you_mean(text, [*names, *catalogue.model_aliases()])
    suffixes = [known for known in readers if known.startswith(".") and known != ".json"]
    files = " or ".join(f"a {known} file" for known in suffixes)
    forms = ", ".join(filter(None, ["a folder with a config.json", files]))
    raise InputError("model", text, f"unknown; {hint}accepted: {', '.join(names)}; or {forms}")
