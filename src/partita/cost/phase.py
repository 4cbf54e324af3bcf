"""A phase as it runs: its chunks of prompts, or its decode steps, through its pipeline stages, priced.

One price is that of a microbatch on one stage (`price_step`); here they become the seconds of a step, of the
whole phase, and the bytes of the fullest chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from partita.cost.ledger import Ledger
from partita.cost.number import Number
from partita.cost.roofline import bound
from partita.cost.schedule import (
    Chunk,
    StageLayers,
    decode_seconds,
    divided_microbatches,
    flow_seconds,
    microbatches,
    prefill_chunks,
    prefill_seconds,
)
from partita.cost.setting import Setting
from partita.cost.step import Step, StepOptions, StepShape, price_step
from partita.sharding.layout import Layout, Storage, resolve
from partita.sharding.roles import Roles
from partita.sharding.spec import parse
from partita.specs.formats import BYTES
from partita.specs.profile import Phase


class Clock(Protocol):
    """Tells how long the parts of a phase take."""

    @property
    def host_seconds(self) -> float:
        """Seconds of the host, once a step."""
        ...

    def stage_seconds(self, ledger: Ledger) -> Number:
        """Seconds of one microbatch on one stage."""
        ...

    def hop_seconds(self, sent_bytes: Number) -> Number:
        """Seconds of one microbatch's activations on their way from one stage to the next."""
        ...


@dataclass(frozen=True)
class BoundClock:
    """Tells the least that everything takes, at peak."""

    setting: Setting
    host_seconds: float = 0.0

    def stage_seconds(self, ledger: Ledger) -> Number:
        return bound(ledger, self.setting.peaks).step_seconds

    def hop_seconds(self, sent_bytes: Number) -> Number:
        return sent_bytes / self.setting.hop_bandwidth


class ChipMemory(NamedTuple):
    """Bytes on one chip."""

    weights: Number
    kv: Number
    activations: Number


@dataclass(frozen=True)
class PhaseRun:
    """A phase of `batch` sequences: prompts of `tokens` each, or decode on a cache of `tokens` each. A chunk
    of decode with more than one query verifies drafts.

    `microbatch_tokens` is that of a runtime which cuts a batch as `Profile.microbatch_tokens` says.
    """

    setting: Setting
    phase: Phase
    roles: Roles
    storage: Storage
    batch: int
    tokens: int
    microbatch_tokens: int | None = None
    _steps: dict[tuple, Step] = field(default_factory=dict, init=False, compare=False, repr=False)
    _cuts: dict[int, PhaseRun] = field(default_factory=dict, init=False, compare=False, repr=False)
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def microbatches(self) -> tuple[int, int]:
        """How many microbatches there are, and the sequences of the largest."""
        stages, most = self.setting.stages, self.microbatch_tokens
        if most is None:
            return microbatches(self.batch, stages)
        return divided_microbatches(self.batch, stages, self.chunks[0].queries, most)

    def cut(self, microbatch_tokens: int) -> PhaseRun:
        """The same phase by a runtime that cuts a batch so; kept, with what is priced of it."""
        found = self._cuts.get(microbatch_tokens)
        if found is None:
            found = self._cuts[microbatch_tokens] = replace(self, microbatch_tokens=microbatch_tokens)
        return found

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """All steps of a prefill, or the step of decode on the whole cache."""
        if self.phase == "decode":
            return (Chunk(1, self.tokens),)
        prefix = min(self.setting.workload.prefix, self.tokens - 1)
        return prefill_chunks(self.tokens, prefix, self.setting.workload.chunk)

    @cached_property
    def decode_steps(self) -> Chunk:
        """All `output` steps of a decode, the cache growing from the prompt on."""
        workload = self.setting.workload
        return Chunk(1, workload.prompt + np.arange(1, workload.output + 1, dtype=float))

    @cached_property
    def ends(self) -> tuple[Chunk, ...]:
        """The last chunk of every group of equal ones, which has the most cache."""
        return tuple(_end(chunk) for chunk in self.chunks)

    @cached_property
    def bound_clock(self) -> BoundClock:
        return BoundClock(self.setting)

    @cached_property
    def longest(self) -> Chunk:
        """The chunk that takes longest."""
        return self.ends[0] if len(self.ends) == 1 else max(self.ends, key=self.step_seconds)

    # -- time: at peak, or by another clock ---------------------------------------------------------------

    def layout(self, chunk: Chunk) -> Layout:
        """The layout of a microbatch of this chunk."""
        found = self._layouts.get(chunk.queries)
        if found is None:
            mesh, size = self.setting.mesh, self.microbatches[1]
            queries = 1 if self.phase == "decode" else chunk.queries  # drafts take decode's own layout
            found = resolve(self.roles, self.storage, mesh, size, queries)
            self._layouts[chunk.queries] = found
        return found

    def stage_seconds(self, chunk: Chunk, clock: Clock | None = None) -> tuple[Number, ...]:
        clock = clock or self.bound_clock
        found = {
            part: clock.stage_seconds(self._step(chunk, part).ledger) for part in set(self.setting.parts)
        }
        return tuple(found[part] for part in self.setting.parts)

    def hop_bytes(self, chunk: Chunk) -> Number:
        """Activations of a microbatch that each chip of a stage sends to its partner in the next."""
        step, sharding = self._step(_end(chunk), self.setting.parts[0]), parse(self.layout(chunk).residual)
        padded = self.storage.padded(self.setting.model, self.setting.mesh.size)
        shards = np.prod([self.setting.mesh.size[axis] for axis in "".join(sharding.axes)], dtype=int)
        elements = step.batch * step.queries * padded["E"] // int(shards)
        return elements * BYTES[self.setting.formats.activations]

    def hop_seconds(self, chunk: Chunk, clock: Clock | None = None) -> Number:
        clock = clock or self.bound_clock
        return clock.hop_seconds(self.hop_bytes(chunk)) if self.setting.stages > 1 else 0

    def step_seconds(self, chunk: Chunk, clock: Clock | None = None) -> float:
        """Seconds of one chunk of every sequence, through all stages."""
        clock = clock or self.bound_clock
        seconds = decode_seconds if self.phase == "decode" else prefill_seconds
        stages, hop = self.stage_seconds(chunk, clock), self.hop_seconds(chunk, clock)
        return float(seconds(stages, hop, self.microbatches[0])) + clock.host_seconds

    def total_seconds(self, clock: Clock | None = None) -> float:
        """Seconds of all chunks of a prefill, or of the `output` steps of decode, whose cache grows from the
        prompt on."""
        clock = clock or self.bound_clock
        if self.phase == "decode":
            chunk = self.decode_steps
            stages, hop = self.stage_seconds(chunk, clock), self.hop_seconds(chunk, clock)
            steps = decode_seconds(stages, hop, self.microbatches[0]) + clock.host_seconds
            return float(np.sum(steps))
        if len(self.chunks) == 1:
            return self.step_seconds(self.chunks[0], clock)
        stages = [self.stage_seconds(chunk, clock) for chunk in self.chunks]
        hops = [self.hop_seconds(chunk, clock) for chunk in self.chunks]
        jobs = self._jobs(hops)
        host = clock.host_seconds * len(jobs) / self.microbatches[0]
        return float(flow_seconds([self._jobs(times) for times in zip(*stages, strict=True)], jobs)) + host

    def _jobs(self, times: Sequence[Number]) -> np.ndarray:
        """Times of each group of chunks as times of all jobs: chunk by chunk, each of all microbatches."""
        groups = [
            np.broadcast_to(time, chunk.context.shape if isinstance(chunk.context, np.ndarray) else 1)
            for time, chunk in zip(times, self.chunks, strict=True)
        ]
        return np.repeat(np.concatenate(groups).astype(float), self.microbatches[0])

    # -- what chips do and hold -------------------------------------------------------------------------

    def busiest(self, chunk: Chunk) -> Step:
        """What a chip of the longest stage does in one chunk of every sequence, with the bytes of `held`."""
        parts, seconds = self.setting.parts, [float(s) for s in self.stage_seconds(chunk)]
        step = self._step(chunk, parts[seconds.index(max(seconds))])
        count, held = self.microbatches[0], self.held
        entries = step.ledger.entries
        if count > 1:
            entries = [replace(entry, repeat=entry.repeat * count) for entry in entries]
        return replace(
            step,
            ledger=replace(step.ledger, entries=entries, layers=step.ledger.layers * count),
            weight_bytes=held.weights,
            kv_bytes=held.kv,
            activation_bytes=held.activations,
        )

    @cached_property
    def held(self) -> ChipMemory:
        """Bytes on a chip of the fullest stage."""
        return max(map(self.held_by, set(self.setting.parts)), key=sum)

    def held_by(self, part: StageLayers) -> ChipMemory:
        """Bytes on a chip of a stage: its weights, the cache of the whole batch at the end of the phase, and
        the activations of the chunk that has most. A whole chunk may end a prompt, as prompts are not all
        of one length."""
        steps = [self._step(chunk, part) for chunk in self.ends]
        if len(self.chunks) > 1:
            steps.append(self._step(Chunk(self.chunks[0].queries, self.tokens), part))
        activations = max(step.activation_bytes for step in steps)
        return ChipMemory(steps[-1].weight_bytes, self.microbatches[0] * steps[-1].kv_bytes, activations)

    @property
    def sequences(self) -> int:
        """Sequences of the batch, padded, whose cache a chip has, or its part of their cache."""
        step = self._step(self.ends[-1], self.setting.parts[0])
        return int(self.microbatches[0] * step.ledger.sequences)

    def _step(self, chunk: Chunk, part: StageLayers) -> Step:
        # an array is known by its id: those priced are kept by `chunks` and `decode_steps`
        context = id(chunk.context) if isinstance(chunk.context, np.ndarray) else chunk.context
        key = (chunk.queries, context, chunk.last, part)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._price(chunk, part)
        return found

    def _price(self, chunk: Chunk, part: StageLayers) -> Step:
        setting, verifies = self.setting, self.phase == "decode" and chunk.queries > 1
        return price_step(
            setting.model,
            self.layout(chunk),
            setting.mesh.size,
            setting.formats,
            StepShape(self.microbatches[1], chunk.queries, chunk.context),
            StepOptions(verifies=verifies),
            part=part if chunk.last else replace(part, unembeds=False),
        )


def _end(chunk: Chunk) -> Chunk:
    """The last of several equal chunks."""
    context = chunk.context
    return replace(chunk, context=int(context[-1])) if isinstance(context, np.ndarray) else chunk
