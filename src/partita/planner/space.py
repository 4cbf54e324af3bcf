"""The space of layouts of one phase: which role every part of a cluster can play.

A row gives each role of each segment a number of chips, 1 where nothing plays it; chips that play one role on
one level of the fabric are one mesh axis, since only their number matters. Illegal combinations are not made:
both phases share what a part of the weights is stored by (E, F or nothing).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cost.links import Level, cluster_levels, mesh_links
from partita.sharding.mesh import Mesh
from partita.sharding.roles import AttentionRole, AxisRoles, WeightRole
from partita.specs.cluster import Cluster
from partita.specs.model import Model
from partita.specs.profile import Phase

Counts = np.ndarray
"""Chips that each role is given of each segment: whole numbers as float64 [rows, segments, roles]."""


MOST_ROWS = 20_000
"""Rows of one phase; where there are more, a layout may use fewer mesh axes."""


@dataclass(frozen=True)
class Segment:
    """Chips that roles are given to: a level of the fabric, or one axis of a mesh that the user named.

    parts: chips on every level of the fabric. whole: one role takes all of it, or its factors are shared out.
    """

    parts: tuple[int, ...]
    whole: bool

    @cached_property
    def size(self) -> int:
        return math.prod(self.parts)

    @cached_property
    def divisors(self) -> tuple[int, ...]:
        """Numbers of its chips that one role can take."""
        n = self.size
        return (1, n) if self.whole else tuple(d for d in range(1, n + 1) if n % d == 0)


@dataclass(frozen=True)
class Topology:
    """What roles are laid out on: the segments, slowest first, and the links of the levels."""

    segments: tuple[Segment, ...]
    levels: tuple[Level, ...]

    @property
    def chips(self) -> int:
        return math.prod(segment.size for segment in self.segments)


@dataclass(frozen=True)
class Space:
    """Layouts of one phase of a model on some chips: each row gives the chips of every segment to roles."""

    model: Model
    topology: Topology
    phase: Phase
    roles: tuple[AxisRoles, ...]
    counts: Counts

    def only(self, rows: np.ndarray) -> Space:
        """The space of some of its rows."""
        return replace(self, counts=self.counts[rows])


def cluster_topology(cluster: Cluster) -> Topology:
    """Every level of a cluster is a segment: all factorisations of its chips into axes."""
    levels = cluster_levels(cluster)
    segments = tuple(
        Segment(tuple(size if i == j else 1 for j in range(len(levels))), whole=False)
        for i, (_, size) in enumerate(levels)
    )
    return Topology(segments, tuple(level for level, _ in levels))


def mesh_topology(mesh: Mesh, cluster: Cluster) -> Topology:
    """Every axis of a given mesh is a segment. Raises InputError where the mesh does not fit the cluster."""
    links = mesh_links(mesh, cluster)
    return Topology(
        tuple(Segment(tuple(map(int, links.parts[a])), whole=True) for a in mesh.axes), links.levels
    )


def axis_roles(
    model: Model, topology: Topology, phase: Phase, *, gathered: bool = True
) -> tuple[AxisRoles, ...]:
    """The roles an axis can play in a phase.

    Attention that splits nothing over an axis is offered only where heads do not divide: elsewhere splitting
    heads does the same with less work. `gathered` False leaves out the weight-gathered roles.
    """
    weights: list[WeightRole] = ["e", "f", "replica"]
    if gathered:
        weights.extend(("e-gathered", "f-gathered"))
    attention: list[AttentionRole] = ["heads", "batch", "context"]
    if any(model.heads % segment.size for segment in topology.segments):
        attention.append("none")
    return tuple(AxisRoles(w, a) for w in weights for a in attention)


def rows(topology: Topology, roles: int, most_axes: int) -> Counts:
    """Every way to give the chips of each segment to at most `most_axes` of so many roles in all."""
    by_segment = [_shares(segment, roles, most_axes) for segment in topology.segments]
    found = by_segment[0][:, None, :]
    for more in by_segment[1:]:
        used = (found > 1).sum(axis=(1, 2))[:, None] + (more > 1).sum(axis=1)[None, :]
        first, second = np.nonzero(used <= most_axes)
        found = np.concatenate([found[first], more[second][:, None, :]], axis=1)
    return found


def count_rows(topology: Topology, roles: int, most_axes: int) -> int:
    """How many rows `rows` makes."""
    ways = [1]  # by the number of axes used
    for segment in topology.segments:
        per = [
            math.comb(roles, used) * len(_factorisations(segment, used)) if used else int(segment.size == 1)
            for used in range(min(roles, most_axes) + 1)
        ]
        ways = [
            sum(ways[i] * per[used - i] for i in range(len(ways)) if 0 <= used - i < len(per))
            for used in range(most_axes + 1)
        ]
    return sum(ways)


def most_axes(topology: Topology, roles: int, batches: int, most_cells: int) -> int:
    """How many mesh axes of more than one chip a phase may use: all there can be, while rows stay few."""
    most, joined = (
        all_axes(topology),
        sum(segment.size > 1 for segment in topology.segments),
    )  # each has an axis at least
    while most > max(2, joined) and count_rows(topology, roles, most) > min(MOST_ROWS, most_cells // batches):
        most -= 1
    return max(most, 1)


def all_axes(topology: Topology) -> int:
    """Mesh axes of more than one chip that there can be."""
    joined = [segment for segment in topology.segments if segment.size > 1]
    return sum(1 if segment.whole else len(prime_factors(segment.size)) for segment in joined)


def prime_factors(n: int) -> list[int]:
    """Ascending; none of 1."""
    found, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return found


def _shares(segment: Segment, roles: int, most: int) -> np.ndarray:
    """[rows, roles]: the factorisations of a segment, its factors given to different roles."""
    if segment.size == 1:
        return np.ones((1, roles))
    found = []
    for used in range(1, min(roles, most) + 1):
        factors = np.array(_factorisations(segment, used), dtype=float).reshape(-1, used)
        chosen = np.array(list(itertools.combinations(range(roles), used))).reshape(-1, used)
        block = np.ones((len(chosen), len(factors), roles))
        row = np.arange(len(chosen))[:, None, None]
        block[row, np.arange(len(factors))[None, :, None], chosen[:, None, :]] = factors[None]
        found.append(block.reshape(-1, roles))
    return np.concatenate(found)


def _factorisations(segment: Segment, parts: int) -> list[tuple[int, ...]]:
    """Ordered factorisations of a segment's chips into `parts` factors above 1."""
    if segment.whole:
        return [(segment.size,)] if parts == 1 and segment.size > 1 else []
    return _ordered(segment.size, parts)


def _ordered(n: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 0:
        return [()] if n == 1 else []
    if parts == 1:
        return [(n,)] if n > 1 else []
    return [
        (first, *rest)
        for first in range(2, n // 2 + 1)
        if n % first == 0
        for rest in _ordered(n // first, parts - 1)
    ]
