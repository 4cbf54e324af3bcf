"""How fast matrices are multiplied: rows against stacks of square weights, as the layers of a model have
them.

The weights of all layers do not fit a cache, and are read in a scan, as the engine reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from partita.cost.estimate import operation_seconds
from partita.cost.ledger import Entry
from partita.cost.roofline import Peaks
from partita.engine.ops import DTYPES
from partita.measure.calibrate.machine import Machine
from partita.measure.stopwatch import Run
from partita.sharding.spec import parse
from partita.specs.formats import BYTES, Float
from partita.specs.profile import Profile


@dataclass(frozen=True)
class Matmul:
    """Products on every device: [rows, width] times [width, width], `layers` times, each with its weights."""

    rows: int
    width: int
    layers: int
    dtype: Float

    @property
    def entry(self) -> Entry:
        size, rows, width = BYTES[self.dtype], self.rows, self.width
        return Entry(
            scope="matmul",
            kind="einsum",
            what="LE,EF->LF",
            before=(parse("L E"), parse("E F")),
            after=parse("L F"),
            flops=2 * rows * width * width,
            needed_flops=2 * rows * width * width,
            weight_bytes=width * width * size,
            second=width * width,
            moved_bytes=2 * rows * width * size,
        )

    @property
    def flops(self) -> int:
        """FLOPs of the program on each device."""
        return int(self.entry.flops) * self.layers

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that each device reads."""
        return int(self.entry.weight_bytes) * self.layers

    def __str__(self) -> str:
        return f"{self.dtype} matmul, {self.rows:,} x {self.width:,} x {self.width:,}"


def settings(machine: Machine) -> Iterator[Matmul]:
    """Matmuls from one row to many, of widths that a shard of a model has."""
    for width, layers in ((512, 8), (1024, 8)) if machine.shared else ((2048, 8), (4096, 4)):
        for rows in (1, 8, 32, 128, 512) if machine.shared else (1, 16, 128, 1024, 8192):
            yield Matmul(rows, width, layers, "f32")
            if rows != 32:
                yield Matmul(rows, width, layers, "bf16")


def program(machine: Machine, matmul: Matmul) -> Run:
    """Every device multiplies on its own, all at once."""
    mesh = machine.grid(len(machine.fabric) - 1, 1)
    dtype = DTYPES[matmul.dtype]
    precision = jax.lax.Precision.HIGHEST if matmul.dtype == "f32" else None

    def run(x, weights):
        def layer(x, w):
            y = jnp.einsum("lf,fe->le", x, w, precision=precision, preferred_element_type=jnp.float32)
            return y.astype(dtype), None

        return jax.lax.scan(layer, x, weights)[0]

    spec, stacked = PartitionSpec("x"), PartitionSpec(None, "x")
    rows = filled(mesh, spec, (machine.chips * matmul.rows, matmul.width), dtype, 0.5)
    whole = (matmul.layers, machine.chips * matmul.width, matmul.width)
    weights = filled(mesh, stacked, whole, dtype, 1 / matmul.width)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=(spec, stacked), out_specs=spec)
    compiled = jax.jit(mapped).lower(rows, weights).compile()
    return lambda: compiled(rows, weights)


def filled(mesh: Any, spec: PartitionSpec, shape: tuple[int, ...], dtype: Any, value: float) -> jax.Array:
    """An array full of one number."""
    return jax.jit(lambda: jnp.full(shape, value, dtype), out_shardings=NamedSharding(mesh, spec))()


def estimated(matmul: Matmul, peaks: Peaks, profile: Profile) -> float:
    """Seconds of the program, which starts once."""
    each = float(operation_seconds(matmul.entry, peaks, profile))
    return each * matmul.layers + profile.value("step_seconds")


def probe(machine: Machine) -> Matmul:
    """What the machine's speed is judged by: as much reading as arithmetic, as in a step."""
    return Matmul(16, 1024, 3, "f32") if machine.shared else Matmul(256, 4096, 4, "f32")
