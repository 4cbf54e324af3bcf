"""Bytes that a chip holds in a run, by the account that plans are made with (`moments.py`).

The engine, which imports nothing of `cost`, asks here for the shapes that it is about to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from partita.cost.prediction import largest
from partita.cost.step import StepOptions, StepShape, price_first_draw, price_step, weight_bytes
from partita.planner.moments import Caches, Steps, account
from partita.program.options import RunOptions
from partita.program.sampling import Kind
from partita.sharding.layout import Layout, Storage
from partita.sharding.mesh import Mesh
from partita.specs.formats import Formats
from partita.specs.model import Model

__all__ = ["Account", "Caches", "Held", "StepShape", "Steps", "account", "largest"]


class Held(NamedTuple):
    """Bytes on one chip in a step."""

    weights: int
    kv: int
    activations: int


@dataclass(frozen=True)
class Account:
    """What a model on a mesh holds in these formats, run as the options say."""

    model: Model
    mesh: Mesh
    formats: Formats
    run_options: RunOptions

    def weights(self, storage: Storage) -> dict[str, int]:
        """Bytes of each parameter; of one layer, for those that every layer has."""
        found = weight_bytes(self.model, storage, self.mesh.size, self.formats)
        return {name: int(size) for name, size in found.items()}

    def step(self, layout: Layout, shape: StepShape, kind: Kind | None, verifies: bool = False) -> Held:
        """A step and the draw of its tokens, one after each token where it `verifies` drafts; kind None: no
        draw, and the logits of every token."""
        options = StepOptions(kind or "greedy", kind is None, verifies, run_options=self.run_options)
        step = price_step(self.model, layout, self.mesh.size, self.formats, shape, options)
        return Held(int(step.weight_bytes), int(step.kv_bytes), int(step.activation_bytes))

    def first_draw(self, prefill: Layout, decode: Layout, prompts: int, slots: int, kind: Kind) -> int:
        """The draw of the first token of every slot from the logits of prompts, beside weights and caches."""
        ledger = price_first_draw(
            self.model,
            prefill,
            decode,
            self.mesh.size,
            self.formats,
            batch=prompts,
            slots=slots,
            kind=kind,
        )
        return int(ledger.held_bytes)
