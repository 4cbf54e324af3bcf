"""The catalogue: models, chips, families of clusters and efficiency profiles, as TOML files, with sources.

Each entry is a table whose fields are those of `Model`, `Chip` or `ClusterFamily`, its key being the name.
Its `sources` table gives the source of every field: keys are fields (several joined by commas;
`fabric.links` for a field of the fabric's axes), values the source. A model or a family may list `aliases`.
A profile is a file of its own in `profiles/`, and the measurements it was fitted to lie beside it.

A file in `models/` may hold a table `form`: fields that its entries share, with their sources. An entry there
may name in `config` the repository on Hugging Face whose config.json its fields are from, save for those it
has sources for.

Everything is read once. Files of the user's are read by `cluster.py` and `resolve.py`.
"""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from partita.errors import InputError
from partita.specs.hardware import Chip, ClusterFamily
from partita.specs.model import Model
from partita.specs.profile import Profile
from partita.specs.wording import did_you_mean

Kind = Literal["models", "chips", "clusters"]
CatalogueEntry = dict[str, Any]


def model_names() -> tuple[str, ...]:
    """Names of the models, in the order of the catalogue."""
    return tuple(_table("models"))


@cache
def model_aliases() -> dict[str, str]:
    """Other names of models: alias -> name."""
    return {alias: name for name, entry in _table("models").items() for alias in entry.get("aliases", [])}


def catalogue_model(name: str) -> Model:
    """The model of a name or alias, in upper or lower case; raises InputError on `model` for any other."""
    known = model_aliases().get(name.lower(), name.lower())
    if known not in _table("models"):
        hint = did_you_mean(name, [*model_names(), *model_aliases()])
        raise InputError("model", name, f"unknown; {hint}catalogue: {', '.join(model_names())}")
    return _model(known)


def chip_names() -> tuple[str, ...]:
    """Names of the chips, in the order of the catalogue."""
    return tuple(_table("chips"))


def chip(name: str) -> Chip:
    """The chip of a name; raises InputError on `chip` for one the catalogue lacks."""
    if name.lower() not in _table("chips"):
        hint = did_you_mean(name, chip_names())
        raise InputError("chip", name, f"unknown; {hint}catalogue: {', '.join(chip_names())}")
    return _chip(name.lower())


def cluster_families_by_name() -> dict[str, ClusterFamily]:
    """The families of clusters by their names and aliases."""
    return {name: family for family in cluster_families() for name in (family.name, *family.aliases)}


@cache
def cluster_families() -> tuple[ClusterFamily, ...]:
    """The families of clusters, in the order of the catalogue."""
    table = _table("clusters")
    return tuple(
        ClusterFamily(name=name, aliases=tuple(entry.get("aliases", ())), **_fields("clusters", name))
        for name, entry in table.items()
    )


def profile_names() -> tuple[str, ...]:
    """Names of the efficiency profiles, sorted."""
    return tuple(_profiles())


def profile(name: str) -> Profile:
    """The efficiency profile of a name; raises InputError on `profile` for one the catalogue lacks."""
    found = _profiles().get(name.lower())
    if found is None:
        hint = did_you_mean(name, profile_names())
        raise InputError("profile", name, f"unknown; {hint}catalogue: {', '.join(profile_names())}")
    return found


def family_profile(family: str) -> Profile | None:
    """The profile that clusters of a family have, or None."""
    return next((found for found in _profiles().values() if family in found.clusters), None)


def sources(kind: Kind, name: str) -> dict[str, str]:
    """The source of every field of an entry, by field. Raises KeyError for an unknown entry."""
    return _by_field(_table(kind)[name]["sources"])


@cache
def _profiles() -> dict[str, Profile]:
    tables = _profile_tables()
    return {name: Profile.model_validate({"name": name, **fields}) for name, fields in tables.items()}


def _fields(kind: Kind, name: str) -> dict[str, Any]:
    return {key: value for key, value in _table(kind)[name].items() if key not in ("aliases", "sources")}


@cache
def _model(name: str) -> Model:
    return Model(name=name, **_fields("models", name))


@cache
def _chip(name: str) -> Chip:
    return Chip(name=name, **_fields("chips", name))


_MODELS = ("palm", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt", "latent")
"""Files of `models/`, in the order in which models are listed."""


@cache
def _table(kind: Kind) -> dict[str, CatalogueEntry]:
    """The entries of "models", "chips" or "clusters" by name, each with all its `sources`."""
    folder = files("partita.specs.catalogue")
    if kind != "models":
        return _toml(folder.joinpath(f"{kind}.toml"))
    found: dict[str, CatalogueEntry] = {}
    for name in _MODELS:
        table = _toml(folder.joinpath("models", f"{name}.toml"))
        form = table.pop("form", {})
        found |= {key: _with_form(entry, form) for key, entry in table.items()}
    return found


def _profile_tables() -> dict[str, CatalogueEntry]:
    """The fields of every file NAME.toml in `profiles/` by name; files of measurements have a second dot."""
    folder = files("partita.specs.catalogue").joinpath("profiles")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    stems = [name.removesuffix(".toml") for name in found]
    return {stem: _toml(folder.joinpath(f"{stem}.toml")) for stem in stems if "." not in stem}


def measured(name: str) -> CatalogueEntry:
    """What the profile `name` was fitted to, from NAME.measured.toml beside it."""
    return _toml(files("partita.specs.catalogue").joinpath("profiles", f"{name}.measured.toml"))


def measured_rows(name: str) -> list[dict[str, str]]:
    """What the profile `name` was fitted to, from NAME.measured.csv; lines with # are its source."""
    file = files("partita.specs.catalogue").joinpath("profiles", f"{name}.measured.csv")
    return list(csv.DictReader(line for line in file.read_text("utf-8").splitlines() if line[:1] != "#"))


def _with_form(entry: CatalogueEntry, form: CatalogueEntry) -> CatalogueEntry:
    """An entry with the fields and sources of its form, where it has none itself."""
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


def _toml(file: Traversable) -> dict[str, CatalogueEntry]:
    return tomllib.loads(file.read_text("utf-8"))
