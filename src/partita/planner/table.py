"""One phase of a model in every layout of the space at many batches, priced in a few passes.

What is priced is the phase alone: its own storage order and no permutation of shards. The other phase can
only make that dearer, so the seconds are a lower bound of those of any pair of layouts the row stands in; the
search prices the pairs themselves, the best of them. By an estimate they may be above it by a few messages,
where another row of the same pass cuts the axes finer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.cost.estimate import estimate
from partita.cost.ledger import Number
from partita.cost.prediction import Phase
from partita.cost.roofline import bound, peaks
from partita.cost.schedule import StageLayers
from partita.cost.step import Step, price_step
from partita.planner.batched_layout import layout, links, spread
from partita.planner.space import AxisRoles, Counts, Topology
from partita.specs.formats import Formats
from partita.specs.hardware import Chip
from partita.specs.model import Model
from partita.specs.profile import Profile

_CELLS = 24_000
"""Rows x batches priced in one pass: as much as stays in a core's cache."""


@dataclass(frozen=True)
class Table:
    """Seconds of one step and bytes of one chip, [rows, batches]; `inf` seconds where a row is no layout."""

    topology: Topology
    phase: Phase
    kinds: tuple[AxisRoles, ...]
    counts: Counts
    batches: tuple[int, ...]
    seconds: np.ndarray
    last_seconds: np.ndarray  # of the step that finds most in the cache
    held_bytes: np.ndarray  # weights, activations and cache
    kv_bytes: np.ndarray  # of these the cache, for the context priced

    @property
    def storage(self) -> np.ndarray:
        """[rows, slots * 2]: over how many chips of each slot the weights are split on E and on F."""
        over = [
            np.prod(
                self.counts[:, :, [c for c, kind in enumerate(self.kinds) if kind.stored == letter]], axis=2
            )
            for letter in "ef"
        ]
        return np.concatenate(over, axis=1).astype(int)

    @property
    def axes(self) -> int:
        """Most mesh axes of more than one chip that a row has."""
        return int((self.counts > 1).sum(axis=(1, 2)).max())

    @property
    def configurations(self) -> int:
        return int(np.isfinite(self.seconds).sum())


def price_table(
    model: Model,
    chip: Chip,
    topology: Topology,
    formats: Formats,
    phase: Phase,
    kinds: Sequence[AxisRoles],
    counts: Counts,
    batches: Sequence[int],
    *,
    queries: int,
    contexts: tuple[float, float] | None,
    part: StageLayers | None = None,
    profile: Profile | None = None,
) -> Table:
    """Prices every row of `counts` at every batch.

    Prompts of `queries` tokens, or, with `contexts`, steps of `queries` tokens on so many cached positions:
    the first for what steps take at least in the mean, the second what the last one finds and a chip holds.
    `part`: of the model, where it is not the whole. `profile`: of the estimate, where seconds are not to be
    the bound; the host's time is left out.
    """
    shape = (len(counts), len(batches))
    seconds, last, held, kv = np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
    space = (model, chip, topology, formats, phase, kinds, counts, batches)
    context = None if contexts is None else np.array(contexts, dtype=float)
    for each in passes(*space, queries=queries, context=context, part=part, profile=profile):

        def of(number: Number, which: int, like: np.ndarray = each.legal) -> Number:
            return number if contexts is None else np.broadcast_to(number, (*like.shape, 2))[:, :, which]

        seconds[each.cells] = np.where(each.legal, of(each.seconds, 0), np.inf)
        last[each.cells] = np.where(each.legal, of(each.seconds, 1), np.inf)
        held[each.cells], kv[each.cells] = of(each.step.memory_bytes, 1), of(each.step.kv_bytes, 1)
    held += chip.runtime_bytes
    return Table(topology, phase, tuple(kinds), counts, tuple(batches), seconds, last, held, kv)


@dataclass(frozen=True)
class Pass:
    """Some rows at some batches, priced together; its numbers broadcast to the shape of `legal`.

    cells: their rows and batches, index arrays that broadcast too. Where there are many contexts, numbers
    have one more dim for these, and `legal` has not. seconds: of a step.
    """

    cells: tuple[np.ndarray, np.ndarray]
    legal: np.ndarray
    step: Step
    seconds: Number


def passes(
    model: Model,
    chip: Chip,
    topology: Topology,
    formats: Formats,
    phase: Phase,
    kinds: Sequence[AxisRoles],
    counts: Counts,
    batches: Sequence[int],
    *,
    queries: int,
    context: float | np.ndarray | None,
    part: StageLayers | None = None,
    profile: Profile | None = None,
) -> Iterator[Pass]:
    """Prices every row at every batch; `context` may be an array [contexts], each then priced as well.

    A cell of rows and batches may come twice: the later one counts.
    """
    split = [
        [c for c, k in enumerate(kinds) if k.splits_tokens and bool(k.stored) == s] for s in (True, False)
    ]
    tokens, replicas = (counts[:, :, chosen].prod(axis=(1, 2)) for chosen in split)
    if queries > 1:  # where sequences do not suffice, gathered axes split query tokens
        tokens, replicas = np.ones_like(tokens), tokens * replicas
    many = np.reshape(context, (1, 1, -1)) if isinstance(context, np.ndarray) else None
    seen = queries if context is None else int(np.min(context))
    depth = 1 if many is None else many.size
    groups = _alike(model, phase, kinds, counts, queries)
    blocks = (
        (g[r], c, e) for g in groups for r, c, e in _blocks(tokens[g], replicas[g], np.array(batches), depth)
    )
    for rows, columns, enough in blocks:
        batch = np.array(batches, dtype=float)[columns]
        found = spread(model, topology, kinds, counts[rows[:, 0]], batch, queries, seen, enough=enough)
        sizes, joined = found.sizes(), links(topology, found)
        if many is not None:
            sizes = {name: size[:, :, None] for name, size in sizes.items()}
            parts = {name: tuple(map(_deeper, spans)) for name, spans in joined.parts.items()}
            joined = replace(joined, parts=parts)
        step = price_step(
            model,
            layout(found, phase == "decode"),
            sizes,
            formats,
            batch=batch if many is None else batch[:, :, None],
            queries=queries,
            context=context if many is None else many,
            free_permutes=True,
            part=part,
        )
        most = peaks(chip, formats, joined)
        if profile is None:
            seconds = bound(step.ledger, most).step_seconds
        else:
            seconds = estimate(step.ledger, most, profile).device_seconds
        yield Pass((rows, columns), found.legal, step, seconds)


def _alike(
    model: Model, phase: Phase, kinds: Sequence[AxisRoles], counts: Counts, queries: int
) -> list[np.ndarray]:
    """Rows by whether attention is computed alike: latent attention has a way of its own for a single query,
    though not where a prompt of one token is padded so that several chips split it.
    """
    if model.latent is None or phase == "decode" or queries > 1:
        return [np.arange(len(counts))]
    context = [c for c, kind in enumerate(kinds) if kind.attention == "context"]
    over = counts[:, :, context].prod(axis=(1, 2))
    return [np.nonzero(over == 1)[0], np.nonzero(over > 1)[0]]


def _blocks(
    tokens: np.ndarray, replicas: np.ndarray, batches: np.ndarray, depth: int
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Index arrays of rows and batches, and whether each batch is enough for the chips that split tokens.

    First all cells as if it were, the rows apart in which no chips split tokens; then, cell by cell, those
    where it is not, so that the split hangs on the batch. `tokens` chips must have a sequence each,
    `replicas` need not.
    """
    columns = np.arange(len(batches))[None, :]
    over = tokens * replicas
    for group in (np.nonzero(over == 1)[0], np.nonzero(over > 1)[0]):
        for rows in _portions(group, len(batches) * depth):
            yield rows[:, None], columns, True
    short = (over[:, None] > batches) & (tokens[:, None] <= batches)
    for cells in _portions(np.argwhere(short), depth):
        yield cells[:, :1], cells[:, 1:], False


def _portions(rows: np.ndarray, cells_a_row: int) -> Iterator[np.ndarray]:
    size = max(1, _CELLS // cells_a_row)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _deeper(size: np.ndarray | int) -> np.ndarray | int:
    return size[:, :, None] if isinstance(size, np.ndarray) else size
