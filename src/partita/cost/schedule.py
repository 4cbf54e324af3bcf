"""In which order a phase runs: chunks of a prompt, layers over pipeline stages, microbatches through them.

A batch is cut in microbatches of one size, the last ones padded to it. Each goes through the stages in order;
a stage works on one at a time and hands its result to the next over a link, which carries one at a time too.
The seconds given here are the least that this order takes, when nothing waits that need not: a lower bound.
While the pipeline fills and drains, or where microbatches are fewer than stages, stages are idle: the bubble.
Numbers may be ints, floats or NumPy arrays that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from partita.cost.number import Number
from partita.errors import InputError
from partita.specs.model import Model


@dataclass(frozen=True)
class Chunk:
    """One step of every sequence, or several equal ones; only the last one of a prompt gives logits.

    `queries` new tokens attend to `context` positions, their own included, or, if it is None, to each other.
    """

    queries: int
    context: Number | None
    last: bool = True


def prefill_chunks(prompt: int, prefix: int, chunk: int | None) -> tuple[Chunk, ...]:
    """The chunks of a prompt whose first `prefix` tokens are cached: those before the last, then the last.

    The first has an array of contexts, float64 [chunks - 1], and is left out where there is but one chunk.
    """
    new = prompt - prefix
    if chunk is None or chunk >= new:
        return (Chunk(new, prompt if prefix else None),)
    ends = prefix + chunk * np.arange(1, -(-new // chunk), dtype=float)
    return Chunk(chunk, ends, last=False), Chunk(prompt - int(ends[-1]), prompt)


@dataclass(frozen=True)
class StageLayers:
    """Layers in a row, by kind, and whether the model's two ends are with them."""

    global_layers: int
    local_layers: int
    embeds: bool = True
    unembeds: bool = True

    @property
    def layers(self) -> int:
        return self.global_layers + self.local_layers


def whole(model: Model) -> StageLayers:
    """All of the model."""
    return StageLayers(model.global_layers, model.local_layers)


def split_layers(model: Model, stages: int) -> tuple[StageLayers, ...]:
    """The part of each stage, in order: layers as even as they go, the longer stages first.

    The first stage has the embedding, the last one the unembedding. Raises InputError (field "stages") unless
    there is a layer for every stage.
    """
    if not 1 <= stages <= model.layers:
        raise InputError(
            "stages",
            stages,
            f"{model.name} has {model.layers} layers; 1 to {model.layers} stages are accepted",
        )
    fewest, longer = divmod(model.layers, stages)
    found, start = [], 0
    for stage in range(stages):
        end = start + fewest + (stage < longer)
        globals_ = model.global_before(end) - model.global_before(start)
        found.append(StageLayers(globals_, end - start - globals_, stage == 0, stage == stages - 1))
        start = end
    return tuple(found)


def microbatches(batch: int, stages: int) -> tuple[int, int]:
    """The number of microbatches a batch is cut into, one a stage if it has as many sequences, and the
    sequences of the largest."""
    count = min(batch, stages)
    return count, -(-batch // count)


def divided_microbatches(batch: int, stages: int, queries: int, most_tokens: int) -> tuple[int, int]:
    """The microbatches of a runtime that never pads: one a stage only where the stages divide the batch.

    Then a microbatch of `queries` new tokens each is halved while it is even and has more than `most_tokens`.
    With one stage a batch is never cut.
    """
    size = batch // stages if batch % stages == 0 else batch
    while stages > 1 and size * queries > most_tokens and size % 2 == 0:
        size //= 2
    return batch // size, size


def decode_seconds(stage_seconds: Sequence[Number], hop_seconds: Number, count: Number) -> Number:
    """One decode step of all sequences: `count` microbatches, each through every stage once.

    Stages that take t_1 ... t_S work on the microbatches in turn; the next token of one starts at the first
    stage once this one has left the last. So a step takes what the slowest stage or link needs for all of
    them, or what one needs to pass, whichever is longer: max(count x max(t, hop), sum(t) + (S - 1) hop).
    With `count` = S and even stages that is S t + (S - 1) hop, and a stage is idle for the hops alone; with
    fewer microbatches also for (S - count) t. The token's way back, a few bytes, is left out.
    """
    passing = sum(stage_seconds) + (len(stage_seconds) - 1) * hop_seconds
    return np.maximum(count * _slowest(stage_seconds, hop_seconds), passing)


def prefill_seconds(stage_seconds: Sequence[Number], hop_seconds: Number, count: Number) -> Number:
    """A prefill of `count` equal microbatches: sum(t) + (S - 1) hop + (count - 1) max(t, hop).

    The first microbatch passes all stages, the others leave the slowest stage one after the other. With even
    stages that is (count + S - 1) t and the hops; the bubble is S - 1 of its count + S - 1 turns.
    """
    passing = sum(stage_seconds) + (len(stage_seconds) - 1) * hop_seconds
    return passing + (count - 1) * _slowest(stage_seconds, hop_seconds)


def flow_seconds(stage_seconds: Sequence[np.ndarray], hop_seconds: np.ndarray) -> Number:
    """Jobs of different lengths through the pipeline, in order: chunk by chunk, each of all microbatches.

    `stage_seconds`: of each stage, an array [jobs]; `hop_seconds`: [jobs]. A stage is done with job j at
    done[j] = max(done at the stage before [j], done[j - 1]) + t[j]. Equal jobs take `prefill_seconds`.
    """
    done = np.cumsum(stage_seconds[0])
    for seconds in stage_seconds[1:]:
        done = _after(_after(done, hop_seconds), seconds)
    return done[-1]


def _after(ready: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """When each job is done if it is ready at `ready`, takes `seconds`, and they run one at a time: the
    recursion of `flow_seconds`, unrolled."""
    taken = np.cumsum(seconds)
    return taken + np.maximum.accumulate(ready - (taken - seconds))


def _slowest(stage_seconds: Sequence[Number], hop_seconds: Number) -> Number:
    """The longest time that one microbatch keeps a stage, or a link between two."""
    found = reduce(np.maximum, stage_seconds)
    return found if len(stage_seconds) == 1 else np.maximum(found, hop_seconds)
