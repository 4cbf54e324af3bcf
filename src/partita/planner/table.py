"""One phase of a model in every layout of the space at many batches, priced in a few passes.

What is priced is the phase alone: its own storage order and no permutation of shards. The other phase can
only make that dearer, so the seconds are a lower bound of those of any pair of layouts the row stands in; the
search prices the pairs themselves, the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.cost.bound import Bound, bound, peaks
from partita.cost.parts import Part
from partita.cost.prediction import Phase
from partita.cost.step import Step, price_step
from partita.planner.letters import layout, links, spread
from partita.planner.space import Class, Counts, Ground
from partita.specs.chip import Chip
from partita.specs.formats import Formats
from partita.specs.model import Model

_CELLS = 24_000
"""Rows x batches priced in one pass: as much as stays in a core's cache."""


@dataclass(frozen=True)
class Table:
    """Seconds of one step and bytes of one chip, [rows, batches]; `inf` seconds where a row is no layout."""

    ground: Ground
    phase: Phase
    kinds: tuple[Class, ...]
    counts: Counts
    batches: tuple[int, ...]
    seconds: np.ndarray
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
    def configurations(self) -> int:
        return int(np.isfinite(self.seconds).sum())


def price_table(
    model: Model,
    chip: Chip,
    ground: Ground,
    formats: Formats,
    phase: Phase,
    kinds: Sequence[Class],
    counts: Counts,
    batches: Sequence[int],
    *,
    queries: int,
    context: float | None,
    part: Part | None = None,
) -> Table:
    """Prices every row of `counts` at every batch.

    Prompts of `queries` tokens, or, with a `context`, steps of `queries` tokens on so many cached positions.
    `part`: of the model, where it is not the whole.
    """
    shape = (len(counts), len(batches))
    seconds, held, kv = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
    options = {"queries": queries, "context": context, "part": part}
    for chosen, step, time, legal in passes(
        model, chip, ground, formats, phase, kinds, counts, batches, **options
    ):
        seconds[chosen] = np.where(legal, time.step_seconds, np.inf)
        held[chosen], kv[chosen] = step.memory_bytes, step.kv_bytes
    return Table(ground, phase, tuple(kinds), counts, tuple(batches), seconds, held + chip.runtime_bytes, kv)


def passes(
    model: Model,
    chip: Chip,
    ground: Ground,
    formats: Formats,
    phase: Phase,
    kinds: Sequence[Class],
    counts: Counts,
    batches: Sequence[int],
    *,
    queries: int,
    context: float | np.ndarray | None,
    part: Part | None = None,
) -> Iterator[tuple[np.ndarray, Step, Bound, np.ndarray]]:
    """Each pass: its rows, what a step costs, how long it takes, and what is legal [rows, batches].

    `context` may be an array [1, 1, contexts]; every number then has that many columns more.
    """
    batch = np.array(batches, dtype=float)[None, :]
    deep = isinstance(context, np.ndarray)
    longest = queries if context is None else float(np.min(context))
    rows_a_pass = max(1, _CELLS // (batch.size * (context.size if isinstance(context, np.ndarray) else 1)))
    # how tokens are split depends on the batch only where there are replicas, and is dear to carry along
    loose = (counts[:, :, [c for c, kind in enumerate(kinds) if kind.splits_tokens]] > 1).any(axis=(1, 2))
    for group in (np.nonzero(~loose)[0], np.nonzero(loose)[0]):
        for start in range(0, len(group), rows_a_pass):
            chosen = group[start : start + rows_a_pass]
            found = spread(model, ground, kinds, counts[chosen], batch, queries, int(longest))
            sizes, joined = found.sizes(), links(ground, found)
            if deep:
                sizes = {name: size[:, :, None] for name, size in sizes.items()}
                joined = replace(
                    joined,
                    parts={
                        name: tuple(n[:, :, None] if isinstance(n, np.ndarray) else n for n in parts)
                        for name, parts in joined.parts.items()
                    },
                )
            step = price_step(
                model,
                layout(found, phase == "decode"),
                sizes,
                formats,
                batch=batch[:, :, None] if deep else batch,
                queries=queries,
                context=context,
                free_permutes=True,
                part=part,
            )
            yield chosen, step, bound(step.ledger, peaks(chip, formats, joined)), found.legal
