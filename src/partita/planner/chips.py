"""How many chips: the clusters of one family from one chip up, each shape as its machine is built."""

from __future__ import annotations

import re
from math import prod

from partita.errors import InputError
from partita.specs import catalogue
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.hardware import ClusterFamily

MOST_CHIPS = 512
"""Chips looked at where the user gives no limit."""

_AUTO = re.compile(r"([^:]+):auto", re.IGNORECASE)


def parse_clusters(text: str, max_chips: int | None = None) -> list[Cluster]:
    """The clusters a text names: one, `h100:2x8`, or with `h100:auto` those of 1, 2, 4 ... `max_chips` chips.

    Raises InputError on `cluster` as `parse_cluster` does, and on `max_chips` where it is below 1 or, for a
    single cluster, below its chips.
    """
    if max_chips is not None and max_chips < 1:
        raise InputError("max_chips", max_chips, "1 or more are accepted")
    match = _AUTO.fullmatch(text.strip())
    if not match:
        found = parse_cluster(text)
        if max_chips is not None and found.chips > max_chips:
            raise InputError(
                "max_chips", max_chips, f"{found.name} has {found.chips}; name a smaller one, or FAMILY:auto"
            )
        return [found]
    family = catalogue.cluster_families_by_name().get(match[1].strip().lower())
    if family is None:
        try:
            parse_cluster(match[1])  # refuses the name, and says which there are
        except InputError as error:
            raise InputError("cluster", text, error.message) from None
        raise InputError("cluster", text, "names no family of the catalogue")
    return [
        parse_cluster(f"{family.name}:{'x'.join(map(str, shape))}")
        for shape in shapes(family, MOST_CHIPS if max_chips is None else max_chips)
    ]


def shapes(family: ClusterFamily, max_chips: int) -> list[tuple[int, ...]]:
    """Shapes of 1, 2, 4 ... chips up to a limit: a torus grows its shortest axis, other fabrics fill the
    fastest axis before the next; a full axis is taken even where it is no power of two."""
    most = min(max_chips, family.max_chips or max_chips)
    torus = all(axis.kind == "torus" for axis in family.fabric)
    shape = [1] * len(family.fabric)
    found = [tuple(shape)]
    while True:
        if torus:
            room = [i for i, axis in enumerate(family.fabric) if 2 * shape[i] <= (axis.max_size or most)]
            place = max(room, key=lambda i: (-shape[i], i), default=None)
        else:
            room = [i for i, axis in enumerate(family.fabric) if shape[i] < (axis.max_size or most)]
            place = max(room, default=None)
        if place is None:
            break
        shape[place] = min(2 * shape[place], family.fabric[place].max_size or most)
        if prod(shape) > most:
            break
        found.append(tuple(shape))
    return found
