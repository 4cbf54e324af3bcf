"""From rows of the space to a mesh and roles: what each phase does on which chips, as one set of axes.

Both phases store the weights alike, so on every slot the chips of one stored letter are the same in both:
they are cut so finely that each axis has one role in each phase. Knows no prices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.planner.batched_layout import spread
from partita.planner.space import AxisRoles, Topology
from partita.sharding.mesh import AXES, Mesh
from partita.sharding.roles import Roles, name_roles
from partita.specs.model import Model

_ANY = AxisRoles("f", "heads")
"""What an axis of one chip does: any role is none."""


class Piece(NamedTuple):
    """Chips of one slot and the role they play in a phase."""

    segment: int
    kind: AxisRoles
    part: str  # which tokens and heads it splits, where its role leaves that open
    size: int


def pieces(
    model: Model,
    topology: Topology,
    kinds: Sequence[AxisRoles],
    row: np.ndarray,
    batch: int,
    queries: int,
    context: int,
    idle: bool,
) -> list[Piece]:
    """What a row [slots, kinds] gives every role at one batch, cut as the phase splits tokens and heads.

    `idle`: replicas too many for the batch are one axis and all stand idle, rather than split what they can.
    """
    found = spread(
        model, topology, kinds, row[None], np.array([[float(batch)]]), queries, context, enough=False
    )
    return [
        Piece(
            letter.segment,
            letter.kind,
            letter.heads if idle and not letter.kind.stored else letter.part,
            int(letter.sizes.max()),
        )
        for letter in found.letters
        if letter.sizes.max() > 1
    ]


def join(
    topology: Topology,
    decode: Sequence[Piece],
    prefill: Sequence[Piece],
    shape: Sequence[int] = (),
    mesh: Mesh | None = None,
) -> tuple[Mesh, Roles, Roles] | None:
    """The mesh and the roles of decode and prefill; None where it would take more axes than there are names.

    `shape`: sizes of the physical axes of a torus, which an axis is cut along where its size allows, so that
    the mesh looks like the machine. mesh: the one the slots are the axes of, where the user gave one.
    """
    axes: list[tuple[int, AxisRoles, AxisRoles]] = []
    for s, segment in enumerate(topology.segments):
        here = []
        for stored in ("", "e", "f"):
            mine = [[p.kind, p.part, p.size] for p in decode if p.segment == s and p.kind.stored == stored]
            theirs = [[p.kind, p.part, p.size] for p in prefill if p.segment == s and p.kind.stored == stored]
            here += _common(mine, theirs, segment.whole)
        if segment.whole and not here:
            here = [(1, _ANY, _ANY)]
        axes += sorted(here, key=lambda axis: (axis[1].stored != "e", axis[1].stored == ""))
    if mesh is None:
        axes = _along(axes or [(1, _ANY, _ANY)], shape)
        if len(axes) > len(AXES):
            return None
        mesh = Mesh.of(tuple(size for size, _, _ in axes))
    roles = [
        name_roles(
            tuple((name, kind.weights) for name, kind in zip(mesh.axes, kinds, strict=True)),
            tuple((name, kind.attention) for name, kind in zip(mesh.axes, kinds, strict=True)),
        )
        for kinds in ([mine for _, mine, _ in axes], [theirs for _, _, theirs in axes])
    ]
    return mesh, roles[0], roles[1]


def _common(decode: list, prefill: list, whole: bool) -> list[tuple[int, AxisRoles, AxisRoles]]:
    """The coarsest axes that both phases are made of, pieces [kind, part, chips].

    Like meets like first: one part of one role of attention, then one role, then what is left.
    """
    if whole:
        return [(decode[0][2], decode[0][0], prefill[0][0])] if decode else []
    found: dict[tuple[AxisRoles, str, AxisRoles, str], int] = {}
    for likeness in (2, 1, 0):
        for mine, theirs in itertools.product(decode, prefill):
            if _likeness(mine, theirs) < likeness:
                continue
            size = math.gcd(mine[2], theirs[2])
            if size > 1:
                mine[2], theirs[2] = mine[2] // size, theirs[2] // size
                key = (mine[0], mine[1], theirs[0], theirs[1])
                found[key] = found.get(key, 1) * size
    return [(size, mine, theirs) for (mine, _, theirs, _), size in found.items()]


def _likeness(mine: list, theirs: list) -> int:
    return 0 if mine[0].attention != theirs[0].attention else 1 + (mine[1] == theirs[1])


def _along(
    axes: list[tuple[int, AxisRoles, AxisRoles]], shape: Sequence[int]
) -> list[tuple[int, AxisRoles, AxisRoles]]:
    """Cuts every axis into whole physical axes, if that can be done for all of them."""
    left = [size for size in shape if size > 1]
    found = []
    for size, mine, theirs in axes:
        while size > 1:
            part = next((p for p in left if size % p == 0), None)
            if part is None:
                return axes
            left.remove(part)
            size //= part
            found.append((part, mine, theirs))
    return found if found and not left else axes
