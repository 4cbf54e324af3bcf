"""The Pareto frontier: for each phase, the layouts over batch and chips that nothing beats in time and cost.

Cost is chip-seconds per token; MFU is its inverse but for a constant, so one frontier serves both. A point
fits its chips, and is its phase alone in its own layout; two phases of one plan share a storage besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.cost.prediction import Prediction
from partita.planner.exact import Exact
from partita.planner.pair import Basis, prompts_of, step_seconds, total_seconds
from partita.planner.request import BATCHES, Case
from partita.planner.tables import COARSE_CELLS, MOST_CELLS, Tables, price
from partita.specs.profile import Phase

_FEW = 4
"""The most cases that are all looked at closely."""


@dataclass(frozen=True)
class Point:
    """One layout at one batch, priced by the bound or the estimate."""

    prediction: Prediction
    basis: Basis = "bound"

    @property
    def seconds(self) -> float:
        """The latency of a decode step or of a whole prefill."""
        seconds = step_seconds if self.prediction.phase == "decode" else total_seconds
        return seconds(self.prediction, self.basis)

    @property
    def chip_seconds_per_token(self) -> float:
        """Chip-seconds over all tokens that are computed, a prompt's chunks together."""
        prediction, setting = self.prediction, self.prediction.setting
        tokens = 1 if prediction.phase == "decode" else setting.workload.new_tokens
        return setting.cluster.chips * self.seconds / (prediction.batch * tokens)

    @property
    def mfu(self) -> float:
        """FLOPs that the model needs over what the chips could do in that time."""
        setting = self.prediction.setting
        return self.prediction.phase_flops / (setting.cluster.chips * self.seconds * setting.peaks.flops)

    def as_json(self) -> dict[str, Any]:
        prediction = self.prediction
        setting = prediction.setting
        return {
            "phase": prediction.phase,
            "cluster": setting.cluster.name,
            "chips": setting.cluster.chips,
            "batch": prediction.batch,
            "weights": setting.formats.weights,
            "kv": setting.formats.kv,
            "mesh": setting.mesh.size,
            "layout": str(prediction.layout.roles),
            "seconds": self.seconds,
            "bound": {"seconds": replace(self, basis="bound").seconds},
            "estimate": self._estimate(),
            "chip_seconds_per_token": self.chip_seconds_per_token,
            "mfu": self.mfu,
            "stages": setting.stages,
            "chunk": setting.workload.chunk,
        }

    def _estimate(self) -> dict[str, Any] | None:
        found = self.prediction.estimate
        if found is None:
            return None
        decode = self.prediction.phase == "decode"
        around = found.step_interval if decode else found.total_interval
        return {"seconds": replace(self, basis="estimate").seconds, "interval": list(around)}


def frontier(tables: Sequence[Tables], most: int = 40) -> tuple[Point, ...]:
    """Both phases' points, decode first, each by rising seconds and falling cost; at most `most` a phase."""
    found: list[Point] = []
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for phase in phases:
        cells = []
        for place, each in enumerate(tables):
            case = each.case
            if phase == "decode":
                table, took, fits = each.decode, each.decode.seconds, each.decode_fits
            else:
                table, took, fits = each.prefill, each.prefill_seconds, each.prefill_fits
            seconds = np.where(fits, took, np.inf)
            for b, row in enumerate(seconds.argmin(axis=0)):
                tokens = table.batches[b] * (1 if phase == "decode" else case.workload.new_tokens)
                if np.isfinite(seconds[row, b]):
                    cost = float(seconds[row, b]) * case.cluster.chips / tokens
                    cells.append((float(seconds[row, b]), cost, place, int(row), b))
        chosen = undominated(cells)
        if len(chosen) > most:  # evenly along it, its ends kept
            chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, most).round().astype(int)]
        points = [
            Point(exact, tables[c[2]].case.ranked_by)
            for c in chosen
            if (exact := Exact(tables[c[2]]).alone(phase, c[3], c[4]))
        ]
        found += [
            point
            for _, _, point in undominated(
                (p.seconds, p.chip_seconds_per_token, p) for p in points if p.prediction.fits
            )
        ]
    return tuple(found)


def over_batches(tables: Sequence[Tables]) -> tuple[Tables, ...]:
    """The same cases priced at every batch of `BATCHES`, whichever they were asked for.

    As closely as those, or as a first look where they are many.
    """
    cells = MOST_CELLS if len(tables) <= _FEW else COARSE_CELLS
    return tuple(price(_over_batches(each), cells) for each in tables)


def _over_batches(tables: Tables) -> Case:
    """Prompts are read as they were in the tables, in chunks or whole."""
    case, prompts = tables.case, prompts_of(tables.case.workload, BATCHES[-1])
    chunks = tuple(dict.fromkeys(portion.chunk for portion in tables.portions))
    sizes = tuple(b for b in BATCHES if b <= prompts)
    return replace(case, batches=BATCHES, prefill_batches=sizes, chunks=chunks)


def undominated(cells: Iterable[tuple]) -> list[tuple]:
    """The tuples that no other equals or beats in both of their first two numbers, by the first, rising."""
    kept: list[tuple] = []
    for cell in sorted(cells, key=lambda cell: cell[:2]):
        if not kept or cell[1] < kept[-1][1]:
            kept.append(cell)
    return kept
