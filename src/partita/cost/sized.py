"""A tensor as the cost interpreter sees it: no numbers in it, only how many and where. Knows no costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.cost.ledger import Number
from partita.sharding.spec import Sharding


@dataclass(frozen=True)
class Sized:
    """A tensor's sharding, global sizes and number format; `settles` is its format once fully summed."""

    sharding: Sharding
    sizes: Mapping[str, Number]
    format: str
    settles: str = ""
    kind: str = "activation"  # or "weight", "gathered" (a weight that has moved), "cache", "read" (a cache)
    stored_bytes: Number = 0  # of a weight, before it was gathered
    scale: Sized | None = None  # of int8 numbers: what some of the dims are multiplied by
    moved: Number = 0  # of a gathered weight, how often it is held: along axes of one chip nothing moves
