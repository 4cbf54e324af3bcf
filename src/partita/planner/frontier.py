"""The Pareto frontier: for each phase, the layouts over batch and chips that nothing beats in time and cost.

Cost is chip-seconds per token; MFU is its inverse but for a constant, so one frontier serves both. A point
fits its chips, and is its phase alone in its own layout; two phases of one plan share a storage besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.cost.prediction import Phase, Prediction
from partita.planner.exact import Exact
from partita.planner.phases import Tables


@dataclass(frozen=True)
class Point:
    """One layout at one batch, priced by the bound."""

    prediction: Prediction

    @property
    def seconds(self) -> float:
        """Latency: of a decode step, or of a whole prefill."""
        decode = self.prediction.phase == "decode"
        return self.prediction.step_seconds if decode else self.prediction.total_seconds

    @property
    def chip_seconds_per_token(self) -> float:
        return self.prediction.bound_chip_seconds_per_token

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
            "chip_seconds_per_token": self.chip_seconds_per_token,
            "mfu": prediction.bound_mfu,
        }


def frontier(tables: Sequence[Tables], most: int = 40) -> tuple[Point, ...]:
    """Both phases' points, decode first, each by rising seconds and falling cost; at most `most` a phase."""
    found: list[Point] = []
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for phase in phases:
        cells = []
        for place, each in enumerate(tables):
            question = each.question
            table, fits = (
                (each.decode, each.decode_fits) if phase == "decode" else (each.prefill, each.prefill_fits)
            )
            seconds = np.where(fits, table.seconds, np.inf)
            for b, row in enumerate(seconds.argmin(axis=0)):
                tokens = table.batches[b] * (1 if phase == "decode" else question.workload.new_tokens)
                if np.isfinite(seconds[row, b]):
                    cost = float(seconds[row, b]) * question.cluster.chips / tokens
                    cells.append((float(seconds[row, b]), cost, place, int(row), b))
        chosen = undominated(cells)
        if len(chosen) > most:  # evenly along it, its ends kept
            chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, most).round().astype(int)]
        points = [Point(exact) for c in chosen if (exact := Exact(tables[c[2]]).alone(phase, c[3], c[4]))]
        found += [
            point
            for _, _, point in undominated(
                (p.seconds, p.chip_seconds_per_token, p) for p in points if p.prediction.fits
            )
        ]
    return tuple(found)


def undominated(cells: Iterable[tuple]) -> list[tuple]:
    """Of tuples that start with two numbers, those no other is as good as in both: by the first, rising."""
    kept: list[tuple] = []
    for cell in sorted(cells, key=lambda cell: cell[:2]):
        if not kept or cell[1] < kept[-1][1]:
            kept.append(cell)
    return kept
