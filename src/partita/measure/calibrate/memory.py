"""How fast memory is read at most: one row times matrices, from those a cache holds to those it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from partita.measure.calibrate.machine import Machine
from partita.measure.calibrate.matmul import filled
from partita.measure.stopwatch import Run


@dataclass(frozen=True)
class MemoryRead:
    """Every device reads a matrix [width, width] in float32, `times` over."""

    width: int
    times: int

    @property
    def bytes(self) -> int:
        """Bytes of the matrix."""
        return 4 * self.width**2

    @property
    def read_bytes(self) -> int:
        """Bytes that the program reads on each device."""
        return self.bytes * self.times

    def __str__(self) -> str:
        return f"read {self.bytes / 2**20:,.4g} MiB"


def settings(machine: Machine) -> Iterator[MemoryRead]:
    """The smallest fits every cache."""
    for width, times in ((256, 64), (1024, 8)) if machine.shared else ((2048, 64), (8192, 8)):
        yield MemoryRead(width, times)


def program(machine: Machine, read: MemoryRead) -> Run:
    """Each product needs the one before, so that none can be left out."""
    mesh = machine.grid(len(machine.fabric) - 1, 1)
    spec = PartitionSpec("x")

    def run(row, matrix):
        def again(row, _):
            return row @ matrix, None

        return jax.lax.scan(again, row, None, length=read.times)[0]

    row = filled(mesh, spec, (machine.chips, read.width), jnp.float32, 1.0)
    matrix = filled(mesh, spec, (machine.chips * read.width, read.width), jnp.float32, 1 / read.width)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    compiled = jax.jit(mapped).lower(row, matrix).compile()
    return lambda: compiled(row, matrix)
