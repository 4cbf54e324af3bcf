"""Reads the TOML files of the catalogue, and gives every field of an entry its source.

Knows the form of the files, not what their fields mean. `chips.toml` and `clusters.toml` hold entries as they
are. A file in `models/` may hold a table `form`: fields that its entries share, with their sources. An entry
there may name in `config` the repository on Hugging Face whose config.json its fields are from, save for
those it has sources for.
"""

from __future__ import annotations

import csv
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

Entry = dict[str, Any]
_MODELS = ("palm", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt", "latent")
"""Files of `models/`, in the order in which models are listed."""


def entries(kind: str) -> dict[str, Entry]:
    """Name -> entry, its `sources` complete, for "models", "chips" or "clusters"."""
    folder = files("partita.specs.catalogue")
    if kind != "models":
        return _toml(folder.joinpath(f"{kind}.toml"))
    found: dict[str, Entry] = {}
    for name in _MODELS:
        table = _toml(folder.joinpath("models", f"{name}.toml"))
        form = table.pop("form", {})
        found |= {key: _with_form(entry, form) for key, entry in table.items()}
    return found


def profiles() -> dict[str, Entry]:
    """Name -> fields of every file NAME.toml in `profiles/`; the measurements there have another dot."""
    folder = files("partita.specs.catalogue").joinpath("profiles")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    stems = [name.removesuffix(".toml") for name in found]
    return {stem: _toml(folder.joinpath(f"{stem}.toml")) for stem in stems if "." not in stem}


def measured(name: str) -> Entry:
    """What the profile `name` was fitted to, from NAME.measured.toml beside it."""
    return _toml(files("partita.specs.catalogue").joinpath("profiles", f"{name}.measured.toml"))


def measured_rows(name: str) -> list[dict[str, str]]:
    """What the profile `name` was fitted to, from NAME.measured.csv; lines with # are its source."""
    file = files("partita.specs.catalogue").joinpath("profiles", f"{name}.measured.csv")
    return list(csv.DictReader(line for line in file.read_text("utf-8").splitlines() if line[:1] != "#"))


def _with_form(entry: Entry, form: Entry) -> Entry:
    """An entry with the fields and sources of its form, which are for what it does not say itself."""
    own = {key: value for key, value in entry.items() if key not in ("config", "sources")}
    sources = _by_field(form.get("sources", {}))
    sources = {field: text for field, text in sources.items() if field not in own}
    if "config" in entry:
        where = f"config.json of {entry['config']} (https://huggingface.co/{entry['config']})"
        sources |= {field: where for field in own if field != "aliases"}
    sources |= _by_field(entry.get("sources", {}))
    return {key: value for key, value in form.items() if key != "sources"} | own | {"sources": sources}


def _by_field(sources: dict[str, str]) -> dict[str, str]:
    return {field.strip(): text for fields, text in sources.items() for field in fields.split(",")}


def _toml(file: Traversable) -> dict[str, Entry]:
    return tomllib.loads(file.read_text("utf-8"))
