"""Both phases of a case in every layout of the space at many batches, priced apart; and which can fit.

The seconds of a phase alone are a lower bound of those of any pair of layouts that it stands in
(`passes.py`); the search prices the pairs themselves, the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from partita.cost.schedule import StageLayers, divided_microbatches, microbatches, split_layers, whole
from partita.planner.moments import Caches, Steps, account, caches_beside
from partita.planner.passes import Pricing, Table, price_table
from partita.planner.request import Case, Portion
from partita.planner.space import Space, axis_roles, most_axes, rows
from partita.specs.formats import BYTES
from partita.specs.profile import Phase, Profile

MOST_CELLS = 100_000
"""Rows x batches of one phase; where there are more, a layout may use fewer mesh axes."""

COARSE_CELLS = 12_000
"""Rows x batches of one phase in a first look, where there are many cases."""

NEAR = 1e-9
"""How far apart, relatively, rounding may put two numbers that are equal."""


Micro = list[tuple[int, int]]
"""The number of microbatches that every batch is cut into, and the sequences of the largest."""


@dataclass(frozen=True)
class Tables:
    """Both phases of a case priced alone, [rows, batches]; seconds are what the case goes by.

    portions: what the prefill of each column reads.
    """

    case: Case
    decode: Table
    prefill: Table
    portions: tuple[Portion, ...]

    @cached_property
    def decode_seconds(self) -> np.ndarray:
        """Seconds, at least, of all output tokens."""
        return self.decode.seconds * self.case.workload.output

    @cached_property
    def prefill_seconds(self) -> np.ndarray:
        """Seconds, at least, of a whole prompt."""
        case = self.case
        chunks = [case.workload.new_tokens / case.tokens_of(portion.chunk) for portion in self.portions]
        return self.prefill.seconds * np.array(chunks)

    @cached_property
    def ttft_seconds(self) -> np.ndarray:
        """Seconds, at least, to the first token; where prompts come at a rate, with the wait of the first
        prompt of a batch for the last."""
        rate = self.case.request.rate
        if rate is None:
            return self.prefill_seconds
        return self.prefill_seconds + (np.array(self.prefill.batches) - 1) / rate

    @cached_property
    def decode_fits(self) -> np.ndarray:
        """Whether weights and the whole cache can fit; true where in doubt."""
        return self._fits(self.decode)

    @cached_property
    def prefill_fits(self) -> np.ndarray:
        """Whether weights and the cache of the prompts can fit; true where in doubt."""
        return self._fits(self.prefill)

    def _fits(self, table: Table) -> np.ndarray:
        return np.isfinite(table.seconds) & (table.held_bytes <= self.capacity)

    @property
    def capacity(self) -> float:
        """Bytes of a chip that may be used, with room for rounding."""
        return self.case.capacity_bytes * (1 + NEAR)

    def together(self, decode: np.ndarray, b: int, prefill: np.ndarray, pb: np.ndarray) -> np.ndarray:
        """[decode rows, prefill rows]: whether both can fit one chip, as `moments.account` has it; true where
        in doubt. `pb`: the column of each row of prefill."""
        written, read, samples = self.decode, self.prefill, self.case.workload.samples
        prompts = np.array([portion.batch for portion in self.portions])[pb]
        chunked = np.array([self.chunked(portion) for portion in self.portions])[pb]
        alive = np.maximum(0, self.case.batches[b] - prompts * samples)[None, :]
        slots, sequences = written.kv_bytes[decode, b][:, None], written.sequences[decode, b][:, None]
        kv = read.kv_bytes[prefill, pb]
        caches = Caches(slots, caches_beside(slots, sequences, alive), kv, chunked)
        # weights and runtime with the activations
        steps = Steps(read.held_bytes[prefill, pb] - kv, 0, written.held_bytes[decode, b][:, None] - slots)
        moments = account(0, caches, steps)
        return np.maximum(moments["reading"].total, moments["decoding"].total) <= self.capacity

    def chunked(self, portion: Portion) -> bool:
        """Whether a prefill reads its prompts in more than one step."""
        return self.case.tokens_of(portion.chunk) < self.case.workload.new_tokens

    @property
    def configurations(self) -> int:
        return self.decode.configurations + self.prefill.configurations


def by_storage(tables: Tables) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every storage that both phases can have, its rows in the table of decode and in that of prefill."""
    groups: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for group, table in zip(groups, (tables.decode, tables.prefill), strict=True):
        for row, key in enumerate(map(tuple, table.storage.tolist())):
            group.setdefault(key, []).append(row)
    for key, decode in groups[0].items():
        if key in groups[1]:
            yield np.array(decode), np.array(groups[1][key])


def price(case: Case, most_cells: int = MOST_CELLS, portions: Sequence[Portion] | None = None) -> Tables:
    """Prices every layout of both phases alone, `most_cells` of each at most; of prefill those `portions`, by
    default all of the case's."""
    chosen = case.portions if portions is None else tuple(portions)

    def decoded(gathered: bool) -> Table:
        space = _space(case, "decode", len(case.batches), most_cells, gathered)
        return _price_phase(case, space, case.batches, 1, None)

    space = _space(case, "prefill", len(case.prefill_batches), most_cells)
    tables = Tables(case, decoded(False), _price_portions(case, space, chosen), chosen)
    return replace(tables, decode=decoded(True)) if _gathering_may_pay(tables) else tables


def with_portions(tables: Tables, portions: Sequence[Portion]) -> Tables:
    """The same with more columns of prefill, in the same layouts."""
    more = _price_portions(tables.case, tables.prefill.space, portions)
    return Tables(
        tables.case, tables.decode, Table.beside([tables.prefill, more]), (*tables.portions, *portions)
    )


def _space(case: Case, phase: Phase, batches: int, most_cells: int, gathered: bool = True) -> Space:
    """The layouts of a phase, so many of them that `most_cells` are priced at so many batches."""
    roles = axis_roles(case.model, case.topology, phase, gathered=gathered)
    most = most_axes(case.topology, len(roles), batches, most_cells)
    return Space(case.model, case.topology, phase, roles, rows(case.topology, len(roles), most))


def _price_portions(case: Case, space: Space, portions: Sequence[Portion]) -> Table:
    """A column for each of the portions, those of one chunk together."""
    workload, found = case.workload, []
    for chunk, group in groupby(portions, key=lambda portion: portion.chunk):
        tokens = case.tokens_of(chunk)
        # the mean of what the steps find in the cache, and what the last one does
        seen = (workload.prefix + (workload.new_tokens + tokens) / 2, workload.prompt)
        chunked = workload.prefix or tokens < workload.new_tokens
        batches = [portion.batch for portion in group]
        found.append(_price_phase(case, space, batches, tokens, seen if chunked else None))
    return found[0] if len(found) == 1 else Table.beside(found)


def _price_phase(
    case: Case, space: Space, batches: Sequence[int], queries: int, seen: tuple[float, float] | None
) -> Table:
    """Steps of so many new tokens of each sequence; for prefill `seen` are its contexts, where it has any."""
    decode, profile = space.phase == "decode", case.profile

    def priced(micro: Micro, profile: Profile | None) -> Table:
        part = _part(case, not decode and queries < case.workload.new_tokens)
        pricing = Pricing(case.cluster.chip, case.formats, queries, part, profile)
        contexts = _contexts(case) if decode else seen
        found = price_table(space, pricing, [size for _, size in micro], contexts)
        return found if case.stages == 1 else _staged(case, found, batches, micro, queries)

    micro = [microbatches(batch, case.stages) for batch in batches]
    if profile is None:
        return priced(micro, None)
    as_run = _as_run(case, batches, queries)
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


def _staged(case: Case, found: Table, batches: Sequence[int], micro: Micro, queries: int) -> Table:
    """A table of microbatches on the first stage as one of whole batches in the pipeline.

    The first stage has the most layers: a microbatch passes as many of these as make the model, or all
    microbatches take their turns there; and all their cache stays.
    """
    count = np.array([count for count, _ in micro])
    passing = case.model.layers / split_layers(case.model, case.stages)[0].layers
    # chunks follow one another through the stages, which fill and drain but once
    chunks = case.workload.new_tokens / queries
    turns = np.maximum(count, passing) if found.space.phase == "decode" else count + (passing - 1) / chunks
    return replace(
        found,
        batches=tuple(batches),
        seconds=found.seconds * turns,
        last_seconds=found.last_seconds * turns,
        held_bytes=found.held_bytes + found.kv_bytes * (count - 1),
        kv_bytes=found.kv_bytes * count,
        sequences=found.sequences * count,
    )


def _as_run(case: Case, batches: Sequence[int], queries: int) -> Micro:
    """The microbatches that the profile's runtime makes, where these are known."""
    most, stages = case.profile and case.profile.microbatch_tokens, case.stages
    if not most or stages == 1:
        return [microbatches(batch, stages) for batch in batches]
    return [divided_microbatches(batch, stages, queries, most) for batch in batches]


def _contexts(case: Case) -> tuple[float, float]:
    """A context on which a decode step takes no longer than the mean one does, and the whole context.

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
