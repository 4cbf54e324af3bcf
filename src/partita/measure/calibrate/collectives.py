"""How fast collectives are: each kind over each physical axis, groups and arrays of several sizes.

The arrays are activations [B L E], moved as the engine moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from partita.cost.estimate import message_seconds, transfer_seconds
from partita.cost.ledger import Entry
from partita.cost.links import Links, mesh_links
from partita.engine.collectives import move
from partita.measure.calibrate.machine import Machine
from partita.measure.calibrate.matmul import filled
from partita.measure.stopwatch import Run
from partita.planner.space import prime_factors
from partita.sharding.mesh import Mesh
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.spec import parse
from partita.specs.cluster import Cluster
from partita.specs.profile import COLLECTIVES, Profile

_QUERIES = 8

_BEFORE_AND_AFTER = {
    "all-gather": ("B L E_y", "B L E"),
    "reduce-scatter": ("B L E", "B L E_y"),
    "all-reduce": ("B L E", "B L E"),
    "all-to-all": ("B L E_y", "B_y L E"),
}


@dataclass(frozen=True)
class Collective:
    """`kind` in groups of `chips` along a physical axis; every device brings `bytes`, whole `granule`s."""

    kind: str
    axis: int
    chips: int
    bytes: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that each chip sends, as the ledger counts them."""
        if self.kind == "all-gather":
            return self.bytes * (self.chips - 1)
        if self.kind == "collective-permute":
            return self.bytes
        return self.bytes * (self.chips - 1) / self.chips * (2 if self.kind == "all-reduce" else 1)

    @property
    def copied_bytes(self) -> float:
        """Bytes with the chip's own shard, as threads of one memory copy it."""
        own = 0 if self.kind == "collective-permute" else 1
        return self.sent_bytes * (1 + own / (self.chips - 1))

    @property
    def times(self) -> int:
        """Repeats in one program, one after the other."""
        return 8 if self.bytes * self.chips <= 2**22 else 2

    def __str__(self) -> str:
        return f"{self.kind} over {self.chips}, {self.bytes / 1024:,.4g} KiB each"


def settings(machine: Machine) -> Iterator[Collective]:
    """Groups of the whole axis and of its smallest factor."""
    sizes = (2**11, 2**16, 2**20, 2**23) if machine.shared else (2**11, 2**17, 2**23, 2**27)
    for axis, (_, size) in enumerate(machine.fabric):
        for chips in dict.fromkeys((*prime_factors(size)[:1], size)):
            if chips == 1:
                continue
            for kind in COLLECTIVES:
                for whole in sizes:
                    # the larger of what goes in and what comes out is about the same for all kinds
                    each = whole // chips if kind == "all-gather" else whole
                    yield Collective(
                        kind, axis, chips, max(each // granule(kind, chips), 1) * granule(kind, chips)
                    )


def granule(kind: str, chips: int) -> int:
    """Bytes of the smallest array [B L E] in float32 of which B is split, and E where the kind splits it."""
    return 4 * chips * _QUERIES * (chips if kind in ("reduce-scatter", "all-reduce", "all-to-all") else 1)


def program(machine: Machine, collective: Collective) -> Run:
    mesh = machine.grid(collective.axis, collective.chips)
    width = collective.bytes // (4 * collective.chips * _QUERIES)
    step, sizes = _step(collective), {"x": 1, "y": collective.chips}

    def once(value):
        if step is None:
            around = [(i, (i + 1) % collective.chips) for i in range(collective.chips)]
            return jax.lax.ppermute(value, "y", around)
        return move(value, step, sizes, blocks=mesh.devices.flat[0].platform == "cpu")

    def run(value):
        def again(total, _):
            held, so_far = jax.lax.optimization_barrier((value, total))
            found = jax.lax.optimization_barrier(once(held))
            return so_far + found[0, 0, 0], None

        return jax.lax.scan(again, value[0, 0, 0], None, length=collective.times)[0][None]

    spec = PartitionSpec(("x", "y"))
    array = filled(mesh, spec, (machine.chips * collective.chips, _QUERIES, width), jnp.float32, 0.5)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    compiled = jax.jit(mapped).lower(array).compile()
    return lambda: compiled(array)


def _step(collective: Collective) -> ReshardStep | None:
    """The step as the program would have it; None for a permute, which no resharding consists of alone."""
    if collective.kind == "collective-permute":
        return None
    before, after = map(parse, _BEFORE_AND_AFTER[collective.kind])
    if collective.kind in ("reduce-scatter", "all-reduce"):
        before = before.summing("y")
    (step,) = reshard(before, after)
    assert step.kind == collective.kind
    return step


def estimated(collective: Collective, cluster: Cluster, profile: Profile) -> float:
    """Seconds of the program."""
    links, axes = along(collective, cluster)
    entry = Entry(
        scope="collective",
        kind=collective.kind,
        what="",
        before=(parse("B L E"),),
        after=parse("B L E"),
        axes=axes,
        sent_bytes=collective.sent_bytes,
        messages=1,
    )
    each = float(transfer_seconds(entry, links, profile) + message_seconds(entry, links, profile))
    return each * collective.times + profile.value("step_seconds")


def along(collective: Collective, cluster: Cluster) -> tuple[Links, str]:
    """The links of the physical axes, the measured one cut in two, and the axis that the groups lie along."""
    at, shape = collective.axis, cluster.shape
    cut = (*shape[:at], shape[at] // collective.chips, collective.chips, *shape[at + 1 :])
    mesh = Mesh.of(cut)
    return mesh_links(mesh, cluster), mesh.axes[at + 1]
