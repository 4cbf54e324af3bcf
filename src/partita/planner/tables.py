"""Both phases of a model in every layout of the space at many batches, priced apart; and which can fit.

A phase is priced alone, with its own storage order and no permutation of shards, many rows in one pass. The
other phase can only make that dearer, so the seconds are a lower bound of those of any pair of layouts that
the row stands in; the search prices the pairs themselves, the best of them. By an estimate they may be above
it by a few messages, where another row of the same pass cuts the axes finer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cost.estimate import StepEstimate, estimate
from partita.cost.number import Number
from partita.cost.roofline import Bound, bound, peaks
from partita.cost.schedule import StageLayers, divided_microbatches, microbatches, split_layers, whole
from partita.cost.step import Step, StepOptions, StepShape, price_step
from partita.planner.batched_layout import batched_axes, layout, links
from partita.planner.request import Case
from partita.planner.space import Space, axis_roles, most_axes, rows
from partita.specs.formats import BYTES, Formats
from partita.specs.hardware import Chip
from partita.specs.profile import Phase, Profile

_CELLS = 24_000
"""Rows x batches priced in one pass: as much as stays in a core's cache."""


@dataclass(frozen=True)
class Table:
    """Seconds of one step and bytes of one chip, [rows, batches]; `inf` seconds where a row is no layout."""

    space: Space
    batches: tuple[int, ...]
    seconds: np.ndarray
    last_seconds: np.ndarray
    """Seconds of the step that finds most in the cache."""
    held_bytes: np.ndarray
    """Weights, activations and cache."""
    kv_bytes: np.ndarray
    """The cache alone, for the context priced."""

    @property
    def storage(self) -> np.ndarray:
        """[rows, segments * 2]: over how many chips of each segment the weights are split on E and on F."""
        over = []
        for dim in "ef":
            stored = [c for c, roles in enumerate(self.space.roles) if roles.stored == dim]
            over.append(np.prod(self.space.counts[:, :, stored], axis=2))
        return np.concatenate(over, axis=1).astype(int)

    @property
    def axes(self) -> int:
        """Most mesh axes of more than one chip that a row has."""
        return int((self.space.counts > 1).sum(axis=(1, 2)).max())

    @property
    def configurations(self) -> int:
        return int(np.isfinite(self.seconds).sum())


@dataclass(frozen=True)
class Pricing:
    """What a step is and how its time is computed.

    queries: new tokens of each sequence. part: the part of the model, where it is not the whole. profile: the
    estimate's, where seconds are not to be the bound; the host's time is left out.
    """

    chip: Chip
    formats: Formats
    queries: int
    part: StageLayers | None = None
    profile: Profile | None = None


def price_table(
    space: Space, pricing: Pricing, batches: Sequence[int], contexts: tuple[float, float] | None
) -> Table:
    """Prices every row of the space at every batch.

    Steps are whole prompts or, with `contexts`, tokens that attend to so many cached positions: the first for
    what steps take at least in the mean, the second what the last one finds and a chip holds.
    """
    shape = (len(space.counts), len(batches))
    seconds, last, held, kv = np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
    context = None if contexts is None else np.array(contexts, dtype=float)
    for each in passes(space, pricing, batches, context):

        def of(number: Number, which: int, like: np.ndarray = each.legal) -> Number:
            return number if contexts is None else np.broadcast_to(number, (*like.shape, 2))[:, :, which]

        seconds[each.cells] = np.where(each.legal, of(each.seconds, 0), np.inf)
        last[each.cells] = np.where(each.legal, of(each.seconds, 1), np.inf)
        held[each.cells], kv[each.cells] = of(each.step.memory_bytes, 1), of(each.step.kv_bytes, 1)
    held += pricing.chip.runtime_bytes
    return Table(space, tuple(batches), seconds, last, held, kv)


@dataclass(frozen=True)
class PricedRows:
    """Some rows at some batches, priced together; its numbers broadcast to the shape of `legal`.

    cells: their rows and batches, index arrays that broadcast too. Where there are many contexts, numbers
    have one more dim for these, and `legal` has not. time: of a step.
    """

    cells: tuple[np.ndarray, np.ndarray]
    legal: np.ndarray
    step: Step
    time: Bound | StepEstimate

    @property
    def seconds(self) -> Number:
        return self.time.step_seconds if isinstance(self.time, Bound) else self.time.device_seconds


def passes(
    space: Space, pricing: Pricing, batches: Sequence[int], context: float | np.ndarray | None
) -> Iterator[PricedRows]:
    """Prices every row at every batch; `context` may be an array [contexts], each then priced as well.

    A cell of rows and batches may come twice: the later one counts.
    """
    model, queries = space.model, pricing.queries
    split = [
        [c for c, r in enumerate(space.roles) if r.splits_tokens and bool(r.stored) == s]
        for s in (True, False)
    ]
    tokens, replicas = (space.counts[:, :, chosen].prod(axis=(1, 2)) for chosen in split)
    if queries > 1:  # where sequences do not suffice, gathered axes split query tokens
        tokens, replicas = np.ones_like(tokens), tokens * replicas
    many = np.reshape(context, (1, 1, -1)) if isinstance(context, np.ndarray) else None
    seen = queries if context is None else int(np.min(context))
    depth = 1 if many is None else many.size
    blocks = (
        (g[r], c, e)
        for g in _alike(space, queries)
        for r, c, e in _blocks(tokens[g], replicas[g], np.array(batches), depth)
    )
    for chosen, columns, enough in blocks:
        batch = np.array(batches, dtype=float)[columns]
        axis_set = batched_axes(space.only(chosen[:, 0]), batch, queries, seen, enough=enough)
        sizes, joined = axis_set.sizes(), links(space.topology, axis_set)
        if many is not None:
            sizes = {name: size[:, :, None] for name, size in sizes.items()}
            parts = {name: tuple(map(_deeper, spans)) for name, spans in joined.parts.items()}
            joined = replace(joined, parts=parts)
            shape = StepShape(batch[:, :, None], queries, many)
        else:
            shape = StepShape(batch, queries, context)
        step = price_step(
            model,
            layout(axis_set),
            sizes,
            pricing.formats,
            shape,
            StepOptions(free_permutes=True),
            part=pricing.part,
        )
        most, profile = peaks(pricing.chip, pricing.formats, joined), pricing.profile
        time = bound(step.ledger, most) if profile is None else estimate(step.ledger, most, profile)
        yield PricedRows((chosen, columns), axis_set.legal, step, time)


def _alike(space: Space, queries: int) -> list[np.ndarray]:
    """Rows by whether attention is computed alike: latent attention has a way of its own for a single query,
    though not where a prompt of one token is padded so that several chips split it.
    """
    if space.model.latent is None or space.phase == "decode" or queries > 1:
        return [np.arange(len(space.counts))]
    context = [c for c, roles in enumerate(space.roles) if roles.attention == "context"]
    over = space.counts[:, :, context].prod(axis=(1, 2))
    return [np.nonzero(over == 1)[0], np.nonzero(over > 1)[0]]


def _blocks(
    tokens: np.ndarray, replicas: np.ndarray, batches: np.ndarray, depth: int
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Index arrays of rows and batches, and whether each batch is enough for the chips that split tokens.

    First all cells as if it were, the rows apart in which no chips split tokens; then, cell by cell, those
    where it is not, so that the split depends on the batch. `tokens` chips must have a sequence each,
    `replicas` need not.
    """
    columns = np.arange(len(batches))[None, :]
    over = tokens * replicas
    for group in (np.nonzero(over == 1)[0], np.nonzero(over > 1)[0]):
        for chosen in _portions(group, len(batches) * depth):
            yield chosen[:, None], columns, True
    short = (over[:, None] > batches) & (tokens[:, None] <= batches)
    for cells in _portions(np.argwhere(short), depth):
        yield cells[:, :1], cells[:, 1:], False


def _portions(rows: np.ndarray, cells_a_row: int) -> Iterator[np.ndarray]:
    size = max(1, _CELLS // cells_a_row)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _deeper(size: Number) -> Number:
    return size[:, :, None] if isinstance(size, np.ndarray) else size


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
    """Both phases of a case priced alone, [rows, batches]; seconds are what the case goes by."""

    case: Case
    decode: Table
    prefill: Table

    @cached_property
    def decode_seconds(self) -> np.ndarray:
        """Seconds, at least, of all output tokens."""
        return self.decode.seconds * self.case.workload.output

    @cached_property
    def prefill_seconds(self) -> np.ndarray:
        """Seconds, at least, of a whole prompt."""
        return self.prefill.seconds * (self.case.workload.new_tokens / self.case.tokens_a_chunk)

    @cached_property
    def decode_fits(self) -> np.ndarray:
        """Whether weights and the whole cache can fit; true where in doubt."""
        return self._fits(self.decode)

    @cached_property
    def prefill_fits(self) -> np.ndarray:
        """Whether weights and the cache of the prompts can fit; true where in doubt."""
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
        roles = axis_roles(case.model, topology, phase, gathered=gathered)
        decode = phase == "decode"
        batches = case.batches if decode else case.prefill_batches
        most = most_axes(topology, len(roles), len(batches), most_cells)
        space = Space(case.model, topology, phase, roles, rows(topology, len(roles), most))
        chunked = workload.prefix or case.tokens_a_chunk < workload.new_tokens
        seen = (workload.prefix + (workload.new_tokens + case.tokens_a_chunk) / 2, workload.prompt)

        def priced(micro: Micro, profile: Profile | None) -> Table:
            pricing = Pricing(
                case.cluster.chip,
                case.formats,
                1 if decode else case.tokens_a_chunk,
                _part(case, not decode and case.tokens_a_chunk < workload.new_tokens),
                profile,
            )
            contexts = _contexts(case) if decode else seen if chunked else None
            found = price_table(space, pricing, [size for _, size in micro], contexts)
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
    turns = np.maximum(count, passing) if found.space.phase == "decode" else count + (passing - 1) / chunks
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
