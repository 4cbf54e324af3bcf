"""Rows of the tables priced as they would run: on one mesh, from one storage, with the cache's resharding.

Both phases store the weights alike, so on every segment as many chips split E, or F, or nothing, in both:
they are cut so finely that each axis has one role in each phase.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partita.cost.prediction import Prediction, predict
from partita.cost.schedule import microbatches
from partita.cost.setting import Setting, stage_of
from partita.errors import InputError
from partita.planner.batched_layout import batched_axes
from partita.planner.pair import Pair, prompts_of
from partita.planner.passes import Table
from partita.planner.space import Space, Topology
from partita.planner.tables import Tables
from partita.sharding.layout import Storage, plan_storage
from partita.sharding.mesh import AXES, Mesh
from partita.sharding.roles import AxisRoles, Roles, name_roles
from partita.specs.profile import Phase

_ANY = AxisRoles("f", "heads")
"""What an axis of one chip does: any role is none."""


class RowAxis(NamedTuple):
    """Chips of one segment that a row gives one role in a phase."""

    segment: int
    roles: AxisRoles
    splits: str
    """Which tokens and heads they split, where their roles leave that open."""
    size: int


def row_axes(
    space: Space, row: int, batch: int, queries: int, context: int, *, idle: bool = False
) -> list[RowAxis]:
    """The axes that a row of a space has at one batch, cut as the phase splits tokens and heads.

    `idle`: replicas too many for the batch are one axis and all stand idle, rather than split what they can.
    """
    only = space.only(np.array([row]))
    axis_set = batched_axes(only, np.array([[float(batch)]]), queries, context, enough=False)
    return [
        RowAxis(
            axis.segment,
            axis.roles,
            axis.heads if idle and not axis.roles.stored else axis.splits,
            int(axis.sizes.max()),
        )
        for axis in axis_set.axes
        if axis.sizes.max() > 1
    ]


def join(
    topology: Topology,
    decode: Sequence[RowAxis],
    prefill: Sequence[RowAxis],
    shape: Sequence[int] = (),
    mesh: Mesh | None = None,
) -> tuple[Mesh, Roles, Roles] | None:
    """The mesh and the roles of decode and prefill; None where it would take more axes than there are names.

    `shape`: sizes of the physical axes of a torus, which an axis is cut along where its size allows, so that
    the mesh looks like the machine. mesh: the one the segments are the axes of, where the user gave one.
    """
    axes: list[tuple[int, AxisRoles, AxisRoles]] = []
    for s, segment in enumerate(topology.segments):
        here = []
        for stored in ("", "e", "f"):
            both = [
                [[a.roles, a.splits, a.size] for a in phase if a.segment == s and a.roles.stored == stored]
                for phase in (decode, prefill)
            ]
            here += _common(both[0], both[1], segment.whole)
        if segment.whole and not here:
            here = [(1, _ANY, _ANY)]
        axes += sorted(here, key=lambda axis: (axis[1].stored != "e", axis[1].stored == ""))
    if mesh is None:
        axes = _along(axes or [(1, _ANY, _ANY)], shape)
        if len(axes) > len(AXES):
            return None
        mesh = Mesh.of(tuple(size for size, _, _ in axes))
    both = [
        name_roles(
            tuple((name, roles.weights) for name, roles in zip(mesh.axes, phase, strict=True)),
            tuple((name, roles.attention) for name, roles in zip(mesh.axes, phase, strict=True)),
        )
        for phase in ([roles for _, roles, _ in axes], [roles for _, _, roles in axes])
    ]
    return mesh, both[0], both[1]


def _common(decode: list, prefill: list, whole: bool) -> list[tuple[int, AxisRoles, AxisRoles]]:
    """The coarsest axes that both phases are made of, each given as [roles, what they split, chips].

    Like meets like first: those that split the same by one role of attention, then those of one role, then
    what is left.
    """
    if whole:
        return [(decode[0][2], decode[0][0], prefill[0][0])] if decode else []
    found: dict[tuple[AxisRoles, str, AxisRoles, str], int] = {}
    for likeness in (2, 1, 0):
        for first, second in itertools.product(decode, prefill):
            if _likeness(first, second) < likeness:
                continue
            size = math.gcd(first[2], second[2])
            if size > 1:
                first[2], second[2] = first[2] // size, second[2] // size
                key = (first[0], first[1], second[0], second[1])
                found[key] = found.get(key, 1) * size
    return [(size, first, second) for (first, _, second, _), size in found.items()]


def _likeness(first: list, second: list) -> int:
    return 0 if first[0].attention != second[0].attention else 1 + (first[1] == second[1])


def _along(
    axes: list[tuple[int, AxisRoles, AxisRoles]], shape: Sequence[int]
) -> list[tuple[int, AxisRoles, AxisRoles]]:
    """Cuts every axis into whole physical axes, if that can be done for all of them."""
    left = [size for size in shape if size > 1]
    found = []
    for size, *both in axes:
        while size > 1:
            part = next((p for p in left if size % p == 0), None)
            if part is None:
                return axes
            left.remove(part)
            size //= part
            found.append((part, *both))
    return found if found and not left else axes


class Exact:
    """Prices pairs of rows as they would run: on one mesh, from one storage, with the cache's resharding."""

    def __init__(self, tables: Tables):
        self.tables, self.case = tables, tables.case
        self._priced: dict[tuple, Prediction] = {}

    def pairs(self, decode_row: int, b: int, prefill_row: int, pb: int) -> Iterator[Pair]:
        """The pair of two rows; where replicas are more than the batch, also with all of them idle."""
        case, workload = self.case, self.case.workload
        prompts, chunk = self.tables.portions[pb]
        tokens, batch = case.tokens_of(chunk), case.batches[b]
        sizes = {
            "batch": batch,
            "prefill_batch": min(prompts, prompts_of(workload, batch)),
            "chunk": chunk,
        }
        for idle in (False, True):
            decode = self._axes(self.tables.decode, decode_row, batch, 1, workload.context, idle)
            prefill = self._axes(self.tables.prefill, prefill_row, prompts, tokens, tokens, idle)
            joined = self._join(decode, prefill, sizes)
            if joined is None:  # no mesh of named axes expresses it
                continue
            setting, decode_roles, prefill_roles = joined
            storage = plan_storage(case.model, setting.mesh, decode_roles, prefill_roles)
            yield Pair(
                self._predict(setting, "prefill", prefill_roles, storage),
                self._predict(setting, "decode", decode_roles, storage),
                case.ranked_by,
            )
            if not any(not a.roles.stored and not a.splits.strip("kg") for a in (*decode, *prefill)):
                return

    def _predict(self, setting: Setting, phase: Phase, roles: Roles, storage: Storage) -> Prediction:
        """Cached, since one phase's layout comes with many of the other's."""
        workload = setting.workload
        sizes = (workload.batch, workload.prefill_batch, workload.chunk)
        key = (phase, setting.mesh, roles, storage, *sizes)
        if key not in self._priced:
            self._priced[key] = predict(setting, phase, roles, storage)
        return self._priced[key]

    def alone(self, phase: Phase, row: int, b: int) -> Prediction | None:
        """One phase in its own storage."""
        case, workload = self.case, self.case.workload
        decode = phase == "decode"
        table = self.tables.decode if decode else self.tables.prefill
        chunk = None if decode else self.tables.portions[b].chunk
        tokens = 1 if decode else case.tokens_of(chunk)
        batch = table.batches[b]
        found = self._axes(table, row, batch, tokens, workload.context if decode else tokens)
        sizes = {"batch": batch, "prefill_batch": batch, "chunk": chunk}
        joined = self._join(found, found, sizes)
        return None if joined is None else predict(joined[0], phase, joined[1])

    def _join(
        self, decode: list[RowAxis], prefill: list[RowAxis], sizes: dict[str, int | None]
    ) -> tuple[Setting, Roles, Roles] | None:
        case = self.case
        shape = stage_of(case.cluster, case.stages).shape
        joined = join(case.topology, decode, prefill, shape, case.request.mesh)
        if joined is None:
            return None
        sized = case.workload.resized(**sizes)
        share = case.request.utilization
        setting = Setting(case.model, case.cluster, joined[0], case.formats, sized, case.stages, share)
        try:
            _ = setting.peaks
        except InputError:  # its axes cut across those of the machine
            return None
        return setting, joined[1], joined[2]

    def _axes(
        self, table: Table, row: int, batch: int, queries: int, context: int, idle: bool = False
    ) -> list[RowAxis]:
        _, largest = microbatches(batch, self.case.stages)
        return row_axes(table.space, row, largest, queries, context, idle=idle)
