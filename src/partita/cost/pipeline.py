"""How long a pipeline of stages takes, from the times of its stages. Pure formulas: numbers in, seconds out.

A batch is cut in microbatches of one size, the last ones padded to it. Each goes through the stages in order;
a stage works on one at a time and hands its result to the next over a link, which carries one at a time too.
What follows is the least time that this order takes, when nothing waits that need not: a lower bound. While
the pipeline fills and drains, or where microbatches are fewer than stages, stages are idle: the bubble.
Numbers may be ints, floats or NumPy arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from partita.cost.ledger import Number


def microbatches(batch: Number, stages: int) -> tuple[Number, Number]:
    """In how many microbatches a batch is cut, one a stage while it lasts, and sequences of the largest."""
    count = np.minimum(batch, stages) if isinstance(batch, np.ndarray) else min(batch, stages)
    return count, -(-batch // count)


def divided_microbatches(batch: int, stages: int, queries: int, most_tokens: int) -> tuple[int, int]:
    """As `microbatches`, of a runtime that never pads: one a stage only where the stages divide the batch.

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
    """When each job is done that is ready then and takes so long, one at a time: the recursion, unrolled."""
    taken = np.cumsum(seconds)
    return taken + np.maximum.accumulate(ready - (taken - seconds))


def _slowest(stage_seconds: Sequence[Number], hop_seconds: Number) -> Number:
    """The longest time that one microbatch keeps a stage, or a link between two."""
    found = reduce(np.maximum, stage_seconds)
    return found if len(stage_seconds) == 1 else np.maximum(found, hop_seconds)
