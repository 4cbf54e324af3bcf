"""The catalogue: models, chips, families of clusters and efficiency profiles, as TOML files, with sources.

Each entry is a table whose fields are those of `Model`, `Chip` or `ClusterFamily`, its key being the name.
Its `sources` table says of every field where it comes from: keys are fields (several joined by commas;
`fabric.links` for a field of the fabric's axes), values the source. A model or a family may list `aliases`.
A profile is a file of its own in `profiles/`, and the measurements it was fitted to lie beside it.

Files of models say shared fields and sources once (`read.py`).

Knows nothing about files of the user's (`cluster.py`, `resolve.py`). Everything is read once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from partita.errors import InputError
from partita.specs.catalogue.read import entries, profiles
from partita.specs.chip import Chip
from partita.specs.family import ClusterFamily
from partita.specs.model import Model
from partita.specs.profile import Profile
from partita.specs.wording import did_you_mean

Kind = Literal["models", "chips", "clusters"]


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
    """The profile that clusters of a family have; None where there is none."""
    return next((found for found in _profiles().values() if family in found.clusters), None)


def sources(kind: Kind, name: str) -> dict[str, str]:
    """Where each field of an entry comes from: field -> source. Raises KeyError for an unknown entry."""
    texts: dict[str, str] = _table(kind)[name]["sources"]
    return {field.strip(): text for fields, text in texts.items() for field in fields.split(",")}


@cache
def _profiles() -> dict[str, Profile]:
    return {name: Profile.model_validate({"name": name, **fields}) for name, fields in profiles().items()}


@cache
def _table(kind: Kind) -> dict[str, dict[str, Any]]:
    return entries(kind)


def _fields(kind: Kind, name: str) -> dict[str, Any]:
    return {key: value for key, value in _table(kind)[name].items() if key not in ("aliases", "sources")}


@cache
def _model(name: str) -> Model:
    return Model(name=name, **_fields("models", name))


@cache
def _chip(name: str) -> Chip:
    return Chip(name=name, **_fields("chips", name))
