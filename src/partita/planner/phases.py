"""Both phases of a question priced alone: every layout at every batch, and which of them can fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cost.schedule import StageLayers, divided_microbatches, microbatches, split_layers, whole
from partita.cost.setting import Phase
from partita.planner.question import Question
from partita.planner.space import Space, axis_roles, most_axes, rows
from partita.planner.table import Pricing, Table, price_table
from partita.specs.formats import BYTES
from partita.specs.profile import Profile

MOST_CELLS = 100_000
"""Rows x batches of one phase; where there are more, a layout may use fewer mesh axes."""

COARSE_CELLS = 12_000
"""Rows x batches of one phase in a first look, where there are many questions."""

NEAR = 1e-9
"""How far apart, relatively, rounding may put two numbers that are equal."""


Micro = list[tuple[int, int]]
"""For every batch the number of microbatches that it is cut into, and the sequences of the largest."""


@dataclass(frozen=True)
class Tables:
    """Both phases of a question priced alone, [rows, batches]; seconds are what the question goes by."""

    question: Question
    decode: Table
    prefill: Table

    @cached_property
    def decode_seconds(self) -> np.ndarray:
        """Seconds, at least, of all output tokens."""
        return self.decode.seconds * self.question.workload.output

    @cached_property
    def prefill_seconds(self) -> np.ndarray:
        """Seconds, at least, of a whole prompt."""
        return self.prefill.seconds * (self.question.workload.new_tokens / self.question.tokens_a_chunk)

    @cached_property
    def decode_fits(self) -> np.ndarray:
        """Whether weights and the whole cache can fit; true where in doubt."""
        return self._fits(self.decode)

    @cached_property
    def prefill_fits(self) -> np.ndarray:
        """Whether weights and the cache of the prompts can fit; true where in doubt."""
        return self._fits(self.prefill)

    def _fits(self, table: Table) -> np.ndarray:
        capacity = self.question.cluster.chip.hbm_bytes * (1 + NEAR)
        return np.isfinite(table.seconds) & (table.held_bytes <= capacity)

    @property
    def configurations(self) -> int:
        return self.decode.configurations + self.prefill.configurations


def price(question: Question, most_cells: int = MOST_CELLS) -> Tables:
    """Prices every layout of both phases alone, `most_cells` of each at most."""
    workload, topology, profile = question.workload, question.topology, question.profile

    def table(phase: Phase, gathered: bool) -> Table:
        roles = axis_roles(question.model, topology, phase, gathered=gathered)
        decode = phase == "decode"
        batches = question.batches if decode else question.prefill_batches
        most = most_axes(topology, len(roles), len(batches), most_cells)
        space = Space(question.model, topology, phase, roles, rows(topology, len(roles), most))
        chunked = workload.prefix or question.tokens_a_chunk < workload.new_tokens
        seen = (workload.prefix + (workload.new_tokens + question.tokens_a_chunk) / 2, workload.prompt)

        def priced(micro: Micro, profile: Profile | None) -> Table:
            pricing = Pricing(
                question.cluster.chip,
                question.formats,
                1 if decode else question.tokens_a_chunk,
                _part(question, not decode and question.tokens_a_chunk < workload.new_tokens),
                profile,
            )
            contexts = _contexts(question) if decode else seen if chunked else None
            found = price_table(space, pricing, [size for _, size in micro], contexts)
            return found if question.stages == 1 else _staged(question, found, batches, micro)

        micro = [microbatches(batch, question.stages) for batch in batches]
        if profile is None:
            return priced(micro, None)
        as_run = _as_run(question, phase, batches)
        found = priced(micro, profile if as_run == micro else None)
        if as_run != micro:  # a chip holds what the bound's microbatches take
            timed = priced(as_run, profile)
            found = replace(
                found,
                seconds=np.maximum(found.seconds, timed.seconds),
                last_seconds=np.maximum(found.last_seconds, timed.last_seconds),
            )
        host = profile.value("step_seconds")
        return replace(found, seconds=found.seconds + host, last_seconds=found.last_seconds + host)

    decode = table("decode", False)
    tables = Tables(question, decode, table("prefill", True))
    if _gathering_may_pay(tables):
        tables = replace(tables, decode=table("decode", True))
    return tables


def _staged(question: Question, found: Table, batches: Sequence[int], micro: Micro) -> Table:
    """A table of microbatches on the first stage as one of whole batches in the pipeline.

    The first stage has the most layers: a microbatch passes as many of these as make the model, or all
    microbatches take their turns there; and all their cache stays.
    """
    count = np.array([count for count, _ in micro])
    passing = question.model.layers / split_layers(question.model, question.stages)[0].layers
    # chunks follow one another through the stages, which fill and drain but once
    chunks = question.workload.new_tokens / question.tokens_a_chunk
    turns = np.maximum(count, passing) if found.space.phase == "decode" else count + (passing - 1) / chunks
    return replace(
        found,
        batches=tuple(batches),
        seconds=found.seconds * turns,
        last_seconds=found.last_seconds * turns,
        held_bytes=found.held_bytes + found.kv_bytes * (count - 1),
        kv_bytes=found.kv_bytes * count,
    )


def _as_run(question: Question, phase: Phase, batches: Sequence[int]) -> Micro:
    """The microbatches that the profile's runtime makes, where these are known."""
    most, stages = question.profile and question.profile.microbatch_tokens, question.stages
    if not most or stages == 1:
        return [microbatches(batch, stages) for batch in batches]
    queries = 1 if phase == "decode" else question.tokens_a_chunk
    return [divided_microbatches(batch, stages, queries, most) for batch in batches]


def _contexts(question: Question) -> tuple[float, float]:
    """A context on which a decode step takes no longer than the mean one does, and the whole context.

    A step's time is convex in the context, so the mean context would do, but for two things: a cache is
    padded to a multiple of the chips it is split over, and a window makes it concave: then the first step
    counts.
    """
    workload, chips = question.workload, question.topology.chips
    first, mean = workload.prompt + 1, workload.prompt + (workload.output + 1) / 2
    low = first if question.model.window is not None else max(first, mean // chips * chips)
    return low, workload.context


def _part(question: Question, chunked: bool) -> StageLayers | None:
    """What is priced: the model, or of a pipeline the layers of its first stage, or what every chunk has."""
    if question.stages > 1:
        first = split_layers(question.model, question.stages)[0]
        return replace(first, embeds=False, unembeds=False)
    return replace(whole(question.model), unembeds=False) if chunked else None


def _gathering_may_pay(tables: Tables) -> bool:
    """Whether a decode step could gather weights and be the faster for it.

    Gathering over any axis brings every chip at least one more of the shards that it holds: where that alone
    takes longer than the best step without, at every batch, no such layout is worth pricing.
    """
    question, profile = tables.question, tables.question.profile
    model, levels = question.model, question.topology.levels
    shard = model.layers * model.layer_parameters * BYTES[question.formats.weights] / question.topology.chips
    if profile is None:
        least = shard / max(level.bandwidth for level in levels)
    else:  # transfers can be hidden, but not behind one another
        reached = (level.bandwidth * profile.link("share", level.kind, "all-gather") for level in levels)
        least = shard / max(reached)
        least += profile.value("step_seconds") + model.layers * profile.value("layer_seconds")
    best = np.where(tables.decode_fits, tables.decode.seconds, np.inf).min(axis=0)
    return bool((best > least).any())
