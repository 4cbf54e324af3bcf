"""Steps of one phase in every layout of a space at many batches, priced in few passes over arrays.

A phase is priced alone, with its own storage order and no permutation of shards, many rows in one pass. The
other phase can only make that dearer, so the seconds are a lower bound of those of any pair of layouts that
the row stands in. By an estimate they may be above it by a few messages, where another row of the same pass
cuts the axes finer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.cost.estimate import StepEstimate, estimate
from partita.cost.number import Number
from partita.cost.roofline import Bound, bound, peaks
from partita.cost.schedule import StageLayers
from partita.cost.step import Step, StepOptions, StepShape, price_step
from partita.planner.batched_layout import batched_axes, layout, links
from partita.planner.space import Space
from partita.specs.formats import Formats
from partita.specs.hardware import Chip
from partita.specs.profile import Profile

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
    sequences: np.ndarray
    """Sequences, padded, whose cache a chip has, or its part of their cache."""

    @classmethod
    def beside(cls, tables: Sequence[Table]) -> Table:
        """Tables of the same rows as one."""
        numbers = ("seconds", "last_seconds", "held_bytes", "kv_bytes", "sequences")
        joined = {name: np.concatenate([getattr(t, name) for t in tables], axis=1) for name in numbers}
        return cls(tables[0].space, tuple(b for t in tables for b in t.batches), **joined)

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
    seconds, last = np.full(shape, np.inf), np.full(shape, np.inf)
    held, kv, sequences = np.zeros(shape), np.zeros(shape), np.ones(shape)
    context = None if contexts is None else np.array(contexts, dtype=float)
    for each in passes(space, pricing, batches, context):

        def of(number: Number, which: int, like: np.ndarray = each.legal) -> Number:
            return number if contexts is None else np.broadcast_to(number, (*like.shape, 2))[:, :, which]

        seconds[each.cells] = np.where(each.legal, of(each.seconds, 0), np.inf)
        last[each.cells] = np.where(each.legal, of(each.seconds, 1), np.inf)
        held[each.cells], kv[each.cells] = of(each.step.memory_bytes, 1), of(each.step.kv_bytes, 1)
        sequences[each.cells] = of(each.step.ledger.sequences, 1)
    held += pricing.chip.runtime_bytes
    return Table(space, tuple(batches), seconds, last, held, kv, sequences)


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
