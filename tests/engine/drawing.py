"""Draws tokens from given logits on 8 devices, split as a layout splits them, and prices the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from partita.cost.cache import LayerStack
from partita.cost.ledger import Ledger, Sized
from partita.cost.ops import CostOps
from partita.cost.sampling import price_draw
from partita.engine.local import Local
from partita.engine.ops import JaxOps
from partita.engine.requests import Sample, arrays, biases, written
from partita.program import sampling
from partita.program.sampling import Kind
from partita.program.transformer import logits_sharding
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.sharding.padding import ceil_to
from partita.sharding.spec import parse
from partita.specs import Formats, Model
from partita.specs.sampling import Sampling

F32 = Formats(weights="f32", activations="f32", kv="f32")


class Drawing:
    """Logits [rows, vocabulary] split `sharding`, such as "B_x L V_yz", over `mesh`."""

    def __init__(self, vocabulary: int, sharding: str, mesh: Mesh):
        self.vocabulary, self.mesh = vocabulary, mesh
        self.sharding = parse(sharding)
        self.padded = ceil_to(vocabulary, mesh.chips)
        grid = np.array(jax.devices()[: mesh.chips]).reshape(mesh.sizes)
        self.devices = jax.sharding.Mesh(grid, tuple(mesh.axes), (AxisType.Explicit,) * len(mesh.axes))
        self.model = Model(
            name="none", layers=1, d_model=8, d_ff=8, heads=1, kv_heads=1, head_dim=8, vocabulary=vocabulary
        )
        self.step = cache(self._step)

    @property
    def history(self) -> str:
        return f"B_{self.sharding['B']} V_{self.sharding['V']}"

    def _step(self, kind: Kind) -> Any:
        split = PartitionSpec(*[tuple(axes) or None for axes in self.sharding.axes])
        table = PartitionSpec(split[0], split[2])
        whole = PartitionSpec()

        def step(logits, settings, positions, history):
            ops = JaxOps(self.mesh.size, F32, self.model, True)
            drawn = sampling.sample(
                ops,
                Local(logits, self.sharding),
                self.vocabulary,
                kind,
                sampling.Drawing(
                    {n: Local(v, parse("B M" if v.ndim > 1 else "B")) for n, v in settings.items()},
                    Local(positions, parse("B")),
                    {n: Local(v, parse(self.history)) for n, v in history.items()},
                ),
            )
            return tuple(None if t is None else t.value for t in (drawn.tokens, drawn.output, drawn.logprobs))

        out = (whole, table, whole) if kind == "full" else (whole, None, None)
        in_specs = (split, whole, whole, table)
        mapped = jax.shard_map(step, mesh=self.devices, in_specs=in_specs, out_specs=out, check_vma=False)
        return jax.jit(mapped)

    def arguments(
        self,
        logits: np.ndarray,
        samples: Sequence[Sample],
        positions: Sequence[int] | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[Sequence[int]] | None = None,
    ) -> tuple[Any, ...]:
        rows = len(logits)
        padding = [(0, 0), (0, self.padded - self.vocabulary)]
        prompts, outputs = prompts or [[]] * rows, outputs or [[]] * rows
        history = {
            "prompt": [written(ids, self.vocabulary) for ids in prompts],
            "output": [written(ids, self.vocabulary) for ids in outputs],
            "bias": [biases(sample.request, self.vocabulary) for sample in samples],
        }
        at = np.arange(rows) if positions is None else np.asarray(positions)
        # padding must not matter, so it holds what would win
        wide = np.pad(np.asarray(logits, np.float32), padding, constant_values=1e9)
        split = PartitionSpec(*[tuple(axes) or None for axes in self.sharding.axes])
        places = (
            NamedSharding(self.devices, split),
            NamedSharding(self.devices, PartitionSpec(split[0], split[2])),
        )
        return (
            jax.device_put(wide[:, None], places[0]),
            arrays(samples),
            at.astype(np.int32),
            {n: jax.device_put(np.pad(np.stack(v), padding), places[1]) for n, v in history.items()},
        )

    def draw(self, kind: Kind, logits: np.ndarray, samples: Sequence[Sample], **others: Any) -> Any:
        """Tokens [rows]; for kind "full" also how often each was written and log-probabilities."""
        found = self.step(kind)(*self.arguments(logits, samples, **others))
        return found if kind == "full" else np.asarray(found[0])

    def price(self, kind: Kind, rows: Any, formats: Formats = F32) -> Ledger:
        ops = CostOps(self.mesh.size, formats, LayerStack(1))
        sizes = {"B": rows, "L": 1, "V": self.padded}
        price_draw(ops, Sized(self.sharding, sizes, "f32", "f32"), self.vocabulary, kind)
        return ops.ledger


def of_layout(text: str, mesh: Mesh, vocabulary: int, rows: int) -> str:
    """How a layout splits logits."""
    model = Model(
        name="m", layers=1, d_model=64, d_ff=64, heads=8, kv_heads=8, head_dim=8, vocabulary=vocabulary
    )
    roles = parse_layout(text, mesh.axes)
    return logits_sharding(resolve(roles, plan_storage(model, mesh, roles, roles), mesh, rows, 1))


def same(request: Sampling, rows: int, seed: int = 0) -> list[Sample]:
    """Samples 0, 1, 2 ... of one request."""
    return [Sample(request, seed, number) for number in range(rows)]
