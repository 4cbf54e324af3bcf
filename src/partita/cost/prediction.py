"""One phase of one model on one cluster in one layout, predicted; and its JSON form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from partita.cost.estimate import estimate
from partita.cost.ledger import Ledger
from partita.cost.number import plain
from partita.cost.phase import PhaseRun
from partita.cost.phase_estimate import PhaseEstimate, expect
from partita.cost.roofline import Bound, Peaks, bound, chip_seconds_per_token, mfu
from partita.cost.schedule import StageLayers, whole
from partita.cost.setting import Setting
from partita.cost.step import Step, StepShape, needed_flops, price_cache_reshard
from partita.sharding.layout import Layout, Storage, plan_storage
from partita.sharding.roles import Roles
from partita.specs.model import Model
from partita.specs.profile import Phase, Profile

__all__ = ["SCHEMA", "Prediction", "Setting", "predict", "reshard_seconds"]

SCHEMA = "partita.prediction/1"


@dataclass(frozen=True)
class Prediction:
    """A phase with its price.

    A prefill step is the whole prompt, or the longest of its chunks; a decode step is one token for every
    sequence. `layout` is that of a step's microbatch. `step` and `bound` are what a chip of the longest
    pipeline stage does in it, all microbatches together; what the step takes beyond that, it waits.
    """

    setting: Setting
    phase: Phase
    layout: Layout
    step: Step
    bound: Bound
    run: PhaseRun

    def priced_in(self, setting: Setting) -> Prediction:
        """The same layout and storage in another setting."""
        return predict(setting, self.phase, self.layout.roles, self.layout.storage)

    @property
    def batch(self) -> int:
        """Sequences of a decode step, prompts of a prefill."""
        return self.run.batch

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.run.longest.queries

    @property
    def steps(self) -> int:
        """Steps of the whole phase: the chunks of a prompt, or the tokens of an output."""
        workload = self.setting.workload
        if self.phase == "decode":
            return workload.output
        return -(-workload.new_tokens // (workload.chunk or workload.new_tokens))

    @cached_property
    def step_seconds(self) -> float:
        return self.run.step_seconds(self.run.longest)

    @cached_property
    def total_seconds(self) -> float:
        """Seconds of all chunks of the prompt, or of all `output` decode steps, whose cache grows from the
        prompt on."""
        return self.run.total_seconds()

    @cached_property
    def estimate(self) -> PhaseEstimate | None:
        """What the phase is expected to take; None where the cluster has no profile."""
        return expect(self.run, self.step.ledger)

    @property
    def idle_seconds(self) -> float:
        """Seconds of a step that the longest pipeline stage waits for the others and the hops; 0 with one
        stage."""
        return max(0.0, self.step_seconds - float(self.bound.step_seconds))

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes per chip (of the fullest stage) by part, the cache being that of the workload's context.

        "runtime" is what driver and runtime keep for themselves (`Chip.runtime_bytes`), "capacity" the part
        of the memory that may be used. The phase is alone on its chips; a plan's account of both together is
        `Pair.memory`.
        """
        held = {
            "weights": self.step.weight_bytes,
            "kv": self.step.kv_bytes,
            "activations": self.step.activation_bytes,
            "runtime": self.setting.cluster.chip.runtime_bytes,
        }
        held = {part: int(size) for part, size in held.items()}
        return held | {"total": sum(held.values()), "capacity": self.setting.capacity_bytes}

    @property
    def fits(self) -> bool:
        memory = self.memory_bytes
        return memory["total"] <= memory["capacity"]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, `needed_flops` over peak and never above 1: as estimated, or without an
        estimate the most that the bound allows."""
        return self._mfu(self._expected_seconds)

    @property
    def bound_mfu(self) -> float:
        """Model FLOPs utilisation that the bound allows."""
        return self._mfu(self.step_seconds)

    @property
    def chip_seconds_per_token(self) -> float:
        """Cost of each token that is computed, a cached prefix not among them: as estimated, else the
        bound's."""
        return self._chip_seconds_per_token(self._expected_seconds)

    @property
    def bound_chip_seconds_per_token(self) -> float:
        """The least cost of a token that the bound allows."""
        return self._chip_seconds_per_token(self.step_seconds)

    @property
    def _expected_seconds(self) -> float:
        return self.step_seconds if self.estimate is None else self.estimate.step_seconds

    @property
    def paper_mfu(self) -> float:
        """Model FLOPs utilisation as the paper counts it, 2 N FLOPs a token, that the bound allows. It may
        pass 1: N counts an embedding that is looked up, and an unembedding of every token of a prompt."""
        chips, peak = self.setting.cluster.chips, self.setting.peaks.flops
        tokens = self.tokens_per_step
        return float(mfu(self.setting.model.parameters, tokens, chips, peak, self.step_seconds))

    @cached_property
    def needed_flops(self) -> int:
        """FLOPs that the model needs for a step of all sequences."""
        chunk, setting = self.run.longest, self.setting
        context = None if chunk.context is None else int(chunk.context)
        part = whole(setting.model)
        return needed_flops(
            setting.model,
            setting.formats,
            StepShape(self.batch, chunk.queries, context),
            part if chunk.last else replace(part, unembeds=False),
        )

    @cached_property
    def phase_flops(self) -> int:
        """FLOPs that the model needs for whole prompts, or for a decode step."""
        if self.phase == "decode":
            return self.needed_flops
        workload, setting = self.setting.workload, self.setting
        context = workload.prompt if workload.prefix else None
        shape = StepShape(self.batch, workload.new_tokens, context)
        return needed_flops(setting.model, setting.formats, shape)

    def _mfu(self, seconds: float) -> float:
        return self.needed_flops / (self.setting.cluster.chips * self.setting.peaks.flops * seconds)

    def _chip_seconds_per_token(self, seconds: float) -> float:
        return float(chip_seconds_per_token(self.tokens_per_step, self.setting.cluster.chips, seconds))

    @cached_property
    def max_context(self) -> int:
        """Most tokens of context (prompt tokens, in prefill) for which this batch still fits; 0 if none."""
        cached = self.setting.workload.prefix if self.phase == "prefill" else 0
        starts = {1} | {cached + size for size in self.split_sizes}
        return largest(lambda tokens: self._held(self.batch, tokens), starts)

    @cached_property
    def max_batch(self) -> int:
        """Most sequences of this context that still fit; 0 if none."""
        return largest(lambda batch: self._held(batch, self.run.tokens), self.batch_starts)

    @property
    def batch_starts(self) -> set[int]:
        """Batches from which the layout can split a microbatch over more chips."""
        return {self.setting.stages * (size - 1) + 1 for size in self.split_sizes}

    @property
    def split_sizes(self) -> set[int]:
        """Numbers of sequences or query tokens from which the layout can split them over more chips."""
        found = {1}
        for size in self.setting.mesh.sizes:
            found |= {size * other for other in found}
        return found

    def _held(self, batch: int, tokens: int) -> bool:
        chip, run = self.setting.cluster.chip, self.run
        held = PhaseRun(self.setting, self.phase, run.roles, run.storage, batch, tokens).held
        return bool(sum(held) + chip.runtime_bytes <= self.setting.capacity_bytes)

    @cached_property
    def padding(self) -> dict[str, dict[str, int]]:
        """Dims stored larger than the model has them, so that every split divides: {"from", "to"}."""
        sizes = padded_dims(self.setting.model, self.layout.storage, self.setting.mesh.size)
        return {name: {"from": a, "to": int(b)} for name, (a, b) in sizes.items() if a != b}

    @property
    def padded_parameters(self) -> int:
        """Parameters added by padding, over all chips."""
        return padded_parameters(self.setting.model, self.layout.storage, self.setting.mesh.size)

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
            "steps": self.steps,
            "workload": workload.model_dump(),
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
                "idle_seconds": self.idle_seconds,
            },
            "pipeline": self._pipeline(),
            "estimate": None if self.estimate is None else self.estimate.as_json(),
            "mfu": self.mfu,
            "chip_seconds_per_token": self.chip_seconds_per_token,
            "paper_mfu": self.paper_mfu,
            "needed_flops": self.needed_flops,
            "flops": self.step.ledger.total("flops"),
            "memory_bytes_per_chip": self.memory_bytes,
            "max_context": self.max_context,
            "max_batch": self.max_batch,
            "padding": {**self.padding, "extra_parameters": self.padded_parameters},
            "collectives": [
                {"kind": kind, "axes": axes, "bytes": plain(sent), "messages": messages}
                for (kind, axes), (sent, messages) in self.step.ledger.collectives().items()
            ],
            "binds": self.bound.binds,
        }

    def _pipeline(self) -> dict[str, Any]:
        """The stages of one step, and what travels between them; seconds and bytes of one microbatch."""
        run, chunk = self.run, self.run.longest
        count, largest_one = run.microbatches
        return {
            "stages": self.setting.stages,
            "layers": [part.layers for part in self.setting.parts],
            "microbatches": count,
            "microbatch": largest_one,
            "stage_seconds": [float(seconds) for seconds in run.stage_seconds(chunk)],
            "hop_bytes": int(run.hop_bytes(chunk)) if self.setting.stages > 1 else 0,
            "hop_seconds": float(run.hop_seconds(chunk)),
        }


def predict(setting: Setting, phase: Phase, roles: Roles, storage: Storage | None = None) -> Prediction:
    """Prices one phase in one layout; `storage` where the other phase shares it, else this phase's own."""
    storage = storage or plan_storage(setting.model, setting.mesh, roles, roles)
    workload = setting.workload
    batch, tokens = (
        (workload.prefill_batch, workload.prompt)
        if phase == "prefill"
        else (workload.batch, workload.context)
    )
    run = PhaseRun(setting, phase, roles, storage, batch, tokens)
    layout, step = run.layout(run.longest), run.busiest(run.longest)
    return Prediction(setting, phase, layout, step, bound(step.ledger, setting.peaks), run)


def reshard_seconds(prefill: Prediction, decode: Prediction, profile: Profile | None = None) -> float:
    """Seconds of moving one prefill's keys and values to decode's sharding, once; every stage moves its own.

    They are the bound, or with a profile the estimate of transfers and messages, none of them hidden.
    """
    return moving_seconds(reshard_ledgers(prefill, decode).values(), decode.setting.peaks, profile)


def reshard_ledgers(prefill: Prediction, decode: Prediction) -> dict[StageLayers, Ledger]:
    """What every kind of stage does to move one prefill's keys and values to decode's sharding."""
    setting = decode.setting
    return {
        part: price_cache_reshard(
            setting.model,
            prefill.layout,
            decode.layout,
            setting.mesh.size,
            setting.formats,
            StepShape(prefill.batch, setting.workload.prompt),
            part=part,
        )
        for part in set(setting.parts)
    }


def moving_seconds(ledgers: Iterable[Ledger], peaks: Peaks, profile: Profile | None = None) -> float:
    """Seconds of the slowest of `reshard_ledgers`, as `reshard_seconds` has them."""
    if profile is not None:
        return max(float(estimate(ledger, peaks, profile).device_seconds) for ledger in ledgers)
    return max(float(bound(ledger, peaks).communication_seconds) for ledger in ledgers)


def padded_dims(model: Model, storage: Storage, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Every dim that could be padded: its size in the model and as stored; `sizes` maps axes to chips."""
    padded = storage.padded(model, sizes)
    return {
        "heads": (model.heads, padded["K"] * padded["G"]),
        "kv_heads": (model.kv_heads, padded["K"]),
        "d_model": (model.d_model, padded["E"]),
        "d_ff": (model.d_ff, padded["F"]),
        "vocabulary": (model.vocabulary, padded["V"]),
    }


def padded_parameters(model: Model, storage: Storage, sizes: Mapping[str, int]) -> int:
    """Parameters added by padding, over all chips."""
    stored = {name: size for name, (_, size) in padded_dims(model, storage, sizes).items()}
    return model.model_copy(update=stored).parameters - model.parameters


def largest(fits: Callable[[int], bool], starts: Iterable[int]) -> int:
    """The largest whole number that fits, 0 if none does.

    Memory grows with the number from one of `starts` to the next, but from there on a layout may split more.
    So the number is found in the last of these ranges whose start fits, by doubling and bisection.
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
