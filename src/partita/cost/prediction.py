"""One phase of one model on one cluster in one layout, predicted; and its JSON form.

Knows nothing about other layouts: choosing is the planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from partita.cost.bound import Bound, Peaks, bound, peaks
from partita.cost.ledger import Number
from partita.cost.links import mesh_links
from partita.cost.metrics import chip_seconds_per_token, mfu
from partita.cost.step import Step, price_step, price_switch
from partita.sharding.layout import Layout, Storage, plan_storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.workload import Workload

Phase = Literal["prefill", "decode"]
SCHEMA = "partita.prediction/1"


@dataclass(frozen=True)
class Setting:
    """What is predicted: everything but the layout."""

    model: Model
    cluster: Cluster
    mesh: Mesh
    formats: Formats
    workload: Workload

    @cached_property
    def peaks(self) -> Peaks:
        return peaks(self.cluster.chip, self.formats, mesh_links(self.mesh, self.cluster))


@dataclass(frozen=True)
class Prediction:
    """A phase priced. A prefill step is the whole prompt, a decode step one token for every sequence."""

    setting: Setting
    phase: Phase
    layout: Layout
    step: Step
    bound: Bound

    @property
    def batch(self) -> int:
        workload = self.setting.workload
        return workload.prefill_batch if self.phase == "prefill" else workload.batch

    @property
    def tokens_per_step(self) -> int:
        return self.batch * (self.setting.workload.prompt if self.phase == "prefill" else 1)

    @property
    def step_seconds(self) -> float:
        return float(self.bound.step_seconds)

    @cached_property
    def total_seconds(self) -> float:
        """The prompt, or all `output` decode steps, the cache growing from the prompt's length."""
        if self.phase == "prefill":
            return self.step_seconds
        workload = self.setting.workload
        contexts = workload.prompt + np.arange(1, workload.output + 1, dtype=float)
        step = _price(self.setting, self.phase, self.layout, self.batch, contexts)
        return float(np.sum(bound(step.ledger, self.setting.peaks).step_seconds))

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Per chip, by part; the cache for the workload's context."""
        held = {
            "weights": self.step.weight_bytes,
            "kv": self.step.kv_bytes,
            "activations": self.step.activation_bytes,
        }
        held = {part: int(size) for part, size in held.items()}
        return held | {"total": sum(held.values()), "capacity": int(self.setting.cluster.chip.hbm_bytes)}

    @property
    def fits(self) -> bool:
        memory = self.memory_bytes
        return memory["total"] <= memory["capacity"]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation that the bound allows."""
        model, chips = self.setting.model, self.setting.cluster.chips
        return float(
            mfu(model.parameters, self.tokens_per_step, chips, self.setting.peaks.flops, self.step_seconds)
        )

    @property
    def chip_seconds_per_token(self) -> float:
        chips = self.setting.cluster.chips
        return float(chip_seconds_per_token(self.tokens_per_step, chips, self.step_seconds))

    @cached_property
    def max_context(self) -> int:
        """Most tokens of context (prompt tokens, in prefill) for which this batch still fits; 0 if none."""
        return _largest(lambda tokens: self._held(self.batch, tokens), self._split_sizes())

    @cached_property
    def max_batch(self) -> int:
        """Most sequences of this context that still fit; 0 if none."""
        workload = self.setting.workload
        tokens = workload.prompt if self.phase == "prefill" else workload.context
        return _largest(lambda batch: self._held(batch, tokens), self._split_sizes())

    def _split_sizes(self) -> set[int]:
        """Numbers of sequences or query tokens from which the layout can split them over more chips."""
        found = {1}
        for size in self.setting.mesh.sizes:
            found |= {size * other for other in found}
        return found

    def _held(self, batch: int, tokens: int) -> bool:
        layout = resolve(
            self.layout.roles,
            self.layout.storage,
            self.setting.mesh,
            batch,
            tokens if self.phase == "prefill" else 1,
        )
        step = _price(self.setting, self.phase, layout, batch, tokens)
        return bool(step.memory_bytes <= self.setting.cluster.chip.hbm_bytes)

    @cached_property
    def padding(self) -> dict[str, dict[str, int]]:
        """Dims stored larger than the model has them, so that every split divides: {"from", "to"}."""
        model = self.setting.model
        padded = self.layout.storage.padded(model, self.setting.mesh.size)
        sizes = {
            "heads": (model.heads, padded["K"] * padded["G"]),
            "kv_heads": (model.kv_heads, padded["K"]),
            "d_model": (model.d_model, padded["E"]),
            "d_ff": (model.d_ff, padded["F"]),
            "vocabulary": (model.vocabulary, padded["V"]),
        }
        return {name: {"from": a, "to": int(b)} for name, (a, b) in sizes.items() if a != b}

    @property
    def padded_parameters(self) -> int:
        """Parameters added by padding, over all chips."""
        model, padded = (
            self.setting.model,
            self.layout.storage.padded(self.setting.model, self.setting.mesh.size),
        )
        larger = model.model_copy(
            update={
                "heads": padded["K"] * padded["G"],
                "kv_heads": padded["K"],
                "d_model": padded["E"],
                "d_ff": padded["F"],
                "vocabulary": padded["V"],
            }
        )
        return larger.parameters - model.parameters

    def as_json(self) -> dict[str, Any]:
        """The object `predict --json` prints; its keys are stable."""
        workload, roles = self.setting.workload, self.layout.roles
        return {
            "schema": SCHEMA,
            "model": self.setting.model.name,
            "cluster": self.setting.cluster.name,
            "chips": self.setting.cluster.chips,
            "phase": self.phase,
            "batch": self.batch,
            "tokens_per_step": self.tokens_per_step,
            "context": workload.prompt if self.phase == "prefill" else workload.context,
            "weights": self.setting.formats.weights,
            "kv": self.setting.formats.kv,
            "formats": self.setting.formats.model_dump(),
            "layout": {
                "ffn": roles.ffn,
                "attention": roles.attention,
                "mesh": self.setting.mesh.size,
                "roles": {
                    axis: {"weights": weight, "attention": attends}
                    for (axis, weight), (_, attends) in zip(roles.weights, roles.attends, strict=True)
                },
            },
            "bound": {
                "step_seconds": self.step_seconds,
                "total_seconds": self.total_seconds,
                "overlapped_step_seconds": float(self.bound.overlapped_seconds),
                "compute_seconds": float(self.bound.compute_seconds),
                "memory_seconds": float(self.bound.memory_seconds),
                "communication_seconds": float(self.bound.communication_seconds),
            },
            "estimate": None,
            "mfu": self.mfu,
            "chip_seconds_per_token": self.chip_seconds_per_token,
            "flops": self.step.ledger.total("flops"),
            "memory_bytes_per_chip": self.memory_bytes,
            "max_context": self.max_context,
            "max_batch": self.max_batch,
            "padding": {**self.padding, "extra_parameters": self.padded_parameters},
            "collectives": [
                {"kind": kind, "axes": axes, "bytes": _plain(sent), "messages": messages}
                for (kind, axes), (sent, messages) in self.step.ledger.collectives().items()
            ],
            "binds": self.bound.binds,
        }


def _plain(number: Number) -> int | float:
    """A count as JSON takes it."""
    return number if isinstance(number, int) else float(number)


def predict(setting: Setting, phase: Phase, roles: Roles, storage: Storage | None = None) -> Prediction:
    """Prices one phase in one layout; `storage` where the other phase shares it, else this phase's own."""
    storage = storage or plan_storage(setting.model, setting.mesh, roles, roles)
    workload = setting.workload
    prefill = phase == "prefill"
    batch = workload.prefill_batch if prefill else workload.batch
    tokens = workload.prompt if prefill else workload.context
    layout = resolve(roles, storage, setting.mesh, batch, workload.prompt if prefill else 1)
    step = _price(setting, phase, layout, batch, tokens)
    return Prediction(setting, phase, layout, step, bound(step.ledger, setting.peaks))


def switch_seconds(prefill: Prediction, decode: Prediction) -> float:
    """Bound of moving one prefill's keys and values to decode's sharding, once."""
    setting = decode.setting
    ledger = price_switch(
        setting.model,
        prefill.layout,
        decode.layout,
        setting.mesh.size,
        setting.formats,
        batch=prefill.batch,
        tokens=setting.workload.prompt,
    )
    return float(bound(ledger, setting.peaks).communication_seconds)


def _price(setting: Setting, phase: Phase, layout: Layout, batch: Number, tokens: Number) -> Step:
    """A prefill of `tokens` each, or a decode step on `tokens` of context each."""
    prefill = phase == "prefill"
    return price_step(
        setting.model,
        layout,
        setting.mesh.size,
        setting.formats,
        batch=batch,
        queries=tokens if prefill else 1,
        context=None if prefill else tokens,
    )


def _largest(fits: Callable[[int], bool], starts: Iterable[int]) -> int:
    """The largest whole number that fits, 0 if none does.

    Memory grows with the number from one of `starts` to the next, but a layout may split more from there
    on: found in the last of these ranges whose start fits, by doubling and bisection.
    """
    ranges = sorted(starts)
    low = next((start for start in reversed(ranges) if fits(start)), 0)
    if not low:
        return 0
    high = min((start for start in ranges if start > low), default=0)
    if not high:
        high = 2 * low
        while high < 2**41 and fits(high):
            low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
