"""Both phases of a case priced alone: every layout at every batch, and which of them can fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cost.schedule import StageLayers, divided_microbatches, microbatches, split_layers, whole
from partita.cost.setting import Phase
from partita.planner.request import Case
from partita.planner.space import Topology, axis_roles, count_rows, rows
from partita.planner.table import Table, price_table
from partita.specs.formats import BYTES
from partita.specs.profile import Profile

MOST_CELLS = 100_000
MOST_ROWS = 20_000
"""Rows x batches, and rows, of one phase; where there are more, a layout may use fewer mesh axes."""

COARSE_CELLS = 12_000
"""The same of a first look, where there are many cases."""

NEAR = 1e-9
"""Of two numbers, how far apart rounding may put them."""


Micro = list[tuple[int, int]]
"""For every batch how many microbatches it is cut in, and sequences of the largest."""


@dataclass(frozen=True)
class Tables:
    """Both phases of a case priced alone, [rows, batches]; seconds are what the case goes by."""

    case: Case
    decode: Table
    prefill: Table

    @cached_property
    def decode_seconds(self) -> np.ndarray:
        """Of all output tokens, at least."""
        return self.decode.seconds * self.case.workload.output

    @cached_property
    def prefill_seconds(self) -> np.ndarray:
        """Of a whole prompt, at least."""
        return self.prefill.seconds * (self.case.workload.new_tokens / self.case.tokens_a_chunk)

    @cached_property
    def decode_fits(self) -> np.ndarray:
        """Whether weights and the whole cache can fit; true where in doubt."""
        return self._fits(self.decode)

    @cached_property
    def prefill_fits(self) -> np.ndarray:
        """The same of prompts."""
        return self._fits(self.prefill)

    def _fits(self, table: Table) -> np.ndarray:
        capacity = self.case.cluster.chip.hbm_bytes * (1 + NEAR)
        return np.isfinite(table.seconds) & (table.held_bytes <= capacity)

    @property
    def configurations(self) -> int:
        return self.decode.configurations + self.prefill.configurations


def price(case: Case, most_cells: int = MOST_CELLS) -> Tables:
    """Prices every layout of both phases alone, `most_cells` of each at most."""
    workload, topology, profile = case.workload, case.topology, case.profile

    def table(phase: Phase, gathered: bool) -> Table:
        kinds = axis_roles(case.model, topology, phase, gathered=gathered)
        decode = phase == "decode"
        batches = case.batches if decode else case.prefill_batches
        counts = rows(topology, len(kinds), most_axes(topology, len(kinds), len(batches), most_cells))
        chunked = workload.prefix or case.tokens_a_chunk < workload.new_tokens
        seen = (workload.prefix + (workload.new_tokens + case.tokens_a_chunk) / 2, workload.prompt)

        def priced(micro: Micro, profile: Profile | None) -> Table:
            found = price_table(
                case.model,
                case.cluster.chip,
                topology,
                case.formats,
                phase,
                kinds,
                counts,
                [size for _, size in micro],
                queries=1 if decode else case.tokens_a_chunk,
                contexts=_contexts(case) if decode else seen if chunked else None,
                part=_part(case, not decode and case.tokens_a_chunk < workload.new_tokens),
                profile=profile,
            )
            return found if case.stages == 1 else _staged(case, found, batches, micro)

        micro = [microbatches(batch, case.stages) for batch in batches]
        if profile is None:
            return priced(micro, None)
        as_run = _as_run(case, phase, batches)
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
    tables = Tables(case, decode, table("prefill", True))
    if _gathering_may_pay(tables):
        tables = replace(tables, decode=table("decode", True))
    return tables


def _staged(case: Case, found: Table, batches: Sequence[int], micro: Micro) -> Table:
    """A table of microbatches on the first stage as one of whole batches in the pipeline.

    The first stage has the most layers: a microbatch passes as many of these as make the model, or all
    microbatches take their turns there; and all their cache stays.
    """
    count = np.array([count for count, _ in micro])
    passing = case.model.layers / split_layers(case.model, case.stages)[0].layers
    # chunks follow one another through the stages, which fill and drain but once
    chunks = case.workload.new_tokens / case.tokens_a_chunk
    turns = np.maximum(count, passing) if found.phase == "decode" else count + (passing - 1) / chunks
    return replace(
        found,
        batches=tuple(batches),
        seconds=found.seconds * turns,
        last_seconds=found.last_seconds * turns,
        held_bytes=found.held_bytes + found.kv_bytes * (count - 1),
        kv_bytes=found.kv_bytes * count,
    )


def _as_run(case: Case, phase: Phase, batches: Sequence[int]) -> Micro:
    """The microbatches that the profile's runtime makes, where these are known."""
    most, stages = case.profile and case.profile.microbatch_tokens, case.stages
    if not most or stages == 1:
        return [microbatches(batch, stages) for batch in batches]
    queries = 1 if phase == "decode" else case.tokens_a_chunk
    return [divided_microbatches(batch, stages, queries, most) for batch in batches]


def _contexts(case: Case) -> tuple[float, float]:
    """Of decode: a context on which a step takes no longer than the mean one, and the whole.

    A step's time is convex in the context, so the mean context would do, but for two things: a cache is
    padded to a multiple of the chips it is split over, and a window makes it concave: then the first step
    counts.
    """
    workload, chips = case.workload, case.topology.chips
    first, mean = workload.prompt + 1, workload.prompt + (workload.output + 1) / 2
    low = first if case.model.window is not None else max(first, mean // chips * chips)
    return low, workload.context


def _part(case: Case, chunked: bool) -> StageLayers | None:
    """What is priced: the model, or of a pipeline the layers of its first stage, or what every chunk has."""
    if case.stages > 1:
        first = split_layers(case.model, case.stages)[0]
        return replace(first, embeds=False, unembeds=False)
    return replace(whole(case.model), unembeds=False) if chunked else None


def most_axes(topology: Topology, kinds: int, batches: int, most_cells: int) -> int:
    """How many mesh axes of more than one chip a phase may use: all there can be, while rows stay few."""
    most, joined = (
        all_axes(topology),
        sum(segment.size > 1 for segment in topology.segments),
    )  # each has an axis at least
    while most > max(2, joined) and count_rows(topology, kinds, most) > min(MOST_ROWS, most_cells // batches):
        most -= 1
    return max(most, 1)


def all_axes(topology: Topology) -> int:
    """Mesh axes of more than one chip that there can be."""
    joined = [segment for segment in topology.segments if segment.size > 1]
    return sum(1 if segment.whole else len(prime_factors(segment.size)) for segment in joined)


def _gathering_may_pay(tables: Tables) -> bool:
    """Whether a decode step could gather weights and be the faster for it.

    Gathering over any axis brings every chip at least one more of the shards that it holds: where that alone
    takes longer than the best step without, at every batch, no such layout is worth pricing.
    """
    case, profile = tables.case, tables.case.profile
    model, levels = case.model, case.topology.levels
    shard = model.layers * model.layer_parameters * BYTES[case.formats.weights] / case.topology.chips
    if profile is None:
        least = shard / max(level.bandwidth for level in levels)
    else:  # transfers can be hidden, but not behind one another
        reached = (level.bandwidth * profile.link("share", level.kind, "all-gather") for level in levels)
        least = shard / max(reached)
        least += profile.value("step_seconds") + model.layers * profile.value("layer_seconds")
    best = np.where(tables.decode_fits, tables.decode.seconds, np.inf).min(axis=0)
    return bool((best > least).any())


def prime_factors(n: int) -> list[int]:
    """Ascending; none of 1."""
    found, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return found
