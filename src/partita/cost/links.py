"""Which physical links a logical mesh axis uses, and how long a collective over some axes takes at least.

A cluster has levels: the network between nodes, the switch inside one, or all axes of a torus together. A
mesh axis lies on one level or spans several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from partita.cost.number import Amount, Number, larger
from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster


@dataclass(frozen=True)
class Level:
    """Links of one kind. `bandwidth`: bytes per second one chip sends over all those it has."""

    bandwidth: float
    in_network_reduction: bool = False
    kind: str = ""  # of its fabric: "torus", "switch" or "network"
    axes: int = 1  # of a torus, those of more than one chip


@dataclass(frozen=True)
class Links:
    """The levels of a cluster, slowest first, and for each mesh axis how many chips it has on each level.

    The counts are ints, or NumPy arrays where many meshes are priced in one pass.
    """

    levels: tuple[Level, ...]
    parts: Mapping[str, tuple[Number, ...]]
    _spans: dict[str, tuple[Number, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)
    _paces: dict[tuple[str, str], Number] = field(default_factory=dict, init=False, compare=False, repr=False)

    def span(self, axes: str) -> tuple[Number, ...]:
        """Chips on each level that a collective over `axes` joins."""
        found = self._spans.get(axes)
        if found is None:
            found = tuple(math.prod(self.parts[axis][i] for axis in axes) for i in range(len(self.levels)))
            self._spans[axes] = found
        return found

    def seconds(self, kind: str, axes: str, sent_bytes: Amount) -> Number:
        """Least seconds for a chip to send `sent_bytes` in one collective of this kind over `axes`.

        Over several levels the best algorithm is hierarchical: k1, k2 ... chips on the levels from the
        slowest (K in all) send of the (K-1)/K of an all-gather or reduce-scatter a part of (k1-1)/(K-1) over
        the slowest level, k1 (k2-1)/(K-1) over the next, and so on; an all-to-all has (k1-1) k2/(K-1), then
        (k2-1)/(K-1): it has nothing to combine before the slow links. The levels work at the same time, so
        the one that takes longest counts. A switch that sums in the network takes every chip's bytes once: an
        all-reduce over its k chips sends k/2(k-1) of what reduce-scatter and all-gather send.
        A collective-permute goes at the pace of the slowest level it touches.
        """
        return sent_bytes * self._seconds_a_byte(kind, axes)

    def _seconds_a_byte(self, kind: str, axes: str) -> Number:
        """Seconds for a byte; kept, since the same collectives over the same axes come back all the time."""
        found = self._paces.get((kind, axes))
        if found is None:
            found = self._paces[kind, axes] = reduce(larger, self.paces(kind, axes), 0)
        return found

    def paces(self, kind: str, axes: str) -> tuple[Number, ...]:
        """The seconds that the links of each level take for a byte of such a collective."""
        span = self.span(axes)
        others = larger(math.prod(span) - 1, 1)
        found = []
        for i, (level, chips) in enumerate(zip(self.levels, span, strict=True)):
            if kind == "collective-permute":
                share = (chips > 1) * 1
            elif kind == "all-to-all":
                share = (chips - 1) * math.prod(span[i + 1 :]) / others
            else:
                share = (chips - 1) * math.prod(span[:i]) / others
            if kind == "all-reduce" and level.in_network_reduction:
                share = share * (chips / larger(2 * (chips - 1), 1))
            found.append(share / level.bandwidth)
        return tuple(found)

    def hops(self, level: int, axes: str) -> Number:
        """Chips that the last piece of an all-gather over `axes` passes on a level.

        Around a ring of k it is k - 1; on a switch or network all chips form one ring, on a torus each
        physical axis one, and they follow one another: over k chips on s axes (`starts`) it is s (k^(1/s) -
        1).
        """
        rings = self.starts(level, axes)
        return rings * (self.span(axes)[level] ** (1 / rings) - 1)

    def starts(self, level: int, axes: str) -> Number:
        """Collectives over single physical axes that one over `axes` is on a level, one after the other.

        On a torus of d axes and n chips one over k chips is of d log k / log n, at least one.
        """
        if self.levels[level].kind != "torus":
            return 1
        return np.maximum(self.levels[level].axes * self.own_links(level, axes), 1)

    def own_links(self, level: int, axes: str) -> Number:
        """The part of a chip's links on a level that lies along `axes`: log k / log n, k of a torus's n
        chips."""
        if self.levels[level].kind != "torus":
            return 1
        chips = math.prod(sizes[level] for sizes in self.parts.values())
        return _at_least(np.log(self.span(axes)[level])) / _at_least(np.log(chips))


def check_mesh(mesh: Mesh, cluster: Cluster) -> None:
    """Raises InputError (field "mesh") unless the mesh has as many chips as the cluster."""
    if mesh.chips != cluster.chips:
        raise InputError(
            "mesh", mesh, f"has {mesh.chips} chips; its size must be that of {cluster.name}, {cluster.chips}"
        )


def cluster_levels(cluster: Cluster) -> tuple[tuple[Level, int], ...]:
    """The levels of a cluster and the chips along each, slowest first.

    The axes of a torus are one level: a collective over any of them can be spread over all the links of the
    chip, as the paper counts it (`Cluster.bandwidth_bytes_per_second`).
    """
    found: list[tuple[Level, int]] = []
    torus = False
    for index, axis in enumerate(cluster.fabric):
        level = Level(cluster.bandwidth_bytes_per_second(index), axis.in_network_reduction, axis.kind)
        if axis.kind == "torus" and torus:
            before, chips = found[-1]
            axes = (chips > 1) * before.axes + (axis.size > 1)
            found[-1] = (replace(level, axes=max(axes, 1)), chips * axis.size)
        else:
            found.append((level, axis.size))
        torus = axis.kind == "torus"
    return tuple(found)


def mesh_links(mesh: Mesh, cluster: Cluster) -> Links:
    """The links of a mesh on a cluster: logical axes fill the levels in order, last with last (the fastest).

    Raises InputError (field "mesh") where the sizes do not multiply to the cluster's, or an axis neither
    divides what is left of a level nor is divided by it.
    """
    check_mesh(mesh, cluster)
    levels = cluster_levels(cluster)
    index = len(levels) - 1
    room = levels[index][1]
    parts = {}
    for axis, size in reversed(list(mesh.size.items())):
        counts = [1] * len(levels)
        while size > 1:
            if room == 1:
                index -= 1
                room = levels[index][1]
                continue
            taken = math.gcd(size, room)
            if taken not in (size, room):
                shape = "x".join(map(str, cluster.shape))
                raise InputError(
                    "mesh",
                    mesh,
                    f"axis {axis} does not fit {cluster.name}: give axes that divide its physical axes "
                    f"({shape}) or are divided by them, fastest last",
                )
            counts[index] *= taken
            size, room = size // taken, room // taken
        parts[axis] = tuple(counts)
    return Links(tuple(level for level, _ in levels), parts)


def _at_least(number: Number) -> Number:
    """The number, or 1 where it is 0, as where a level has one chip and nothing is sent."""
    return np.where(number > 0, number, 1.0)
