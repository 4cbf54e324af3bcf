"""Runs steps of a model under several layouts, and sets what the clock says beside bound and estimate.

Knows nothing about values: weights are made up (`launches.py`). Layouts come from whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from partita.cost.prediction import Prediction
from partita.engine.engine import EngineOptions
from partita.measure.calibrate import matmul
from partita.measure.calibrate.machine import Machine, machine
from partita.measure.launches import Steps
from partita.measure.stopwatch import Timed, time_each
from partita.planner.pair import basis_of, expected, step_seconds
from partita.sharding.layout import Storage
from partita.specs.profile import Phase

_ROOM = 0.5
"""Part of a device's memory that weights kept at the same time may take."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ClockedStep:
    """A step predicted, by a cluster with a profile, and measured."""

    prediction: Prediction
    timed: Timed
    slower: float
    """How much slower the probe ran, at its best, than when the machine was calibrated; 1 where nobody timed
    it then. No time is corrected by it."""

    @property
    def layout(self) -> str:
        return str(self.prediction.layout.roles)

    @property
    def measured_seconds(self) -> float:
        """The time at the best speed that the machine had while it was timed."""
        return self.timed.seconds

    @property
    def estimated_seconds(self) -> float:
        return expected(self.prediction).step_seconds

    @property
    def error(self) -> float:
        """Estimated over measured, less 1."""
        return self.estimated_seconds / self.measured_seconds - 1

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds: the estimate's 90% interval."""
        return expected(self.prediction).step_interval


@dataclass(frozen=True)
class PhaseClock:
    """One phase under several layouts, in the order they were asked for."""

    phase: Phase
    runs: tuple[ClockedStep, ...]

    @property
    def median_error(self) -> float:
        """Median size of the relative errors."""
        return float(np.median([abs(run.error) for run in self.runs]))

    @cached_property
    def rank_correlation(self) -> float | None:
        """Spearman's, of estimated and measured times; None of fewer than three layouts, and where one of
        the two times is the same of all."""
        from scipy.stats import spearmanr  # slow to import

        estimated = [run.estimated_seconds for run in self.runs]
        measured = [run.measured_seconds for run in self.runs]
        if len(self.runs) < 3 or len(set(estimated)) == 1 or len(set(measured)) == 1:
            return None
        return float(np.array(spearmanr(estimated, measured), dtype=float)[0])

    @property
    def inside(self) -> float:
        """Share of the measured times that lie in their intervals."""
        within = [run.interval[0] <= run.measured_seconds <= run.interval[1] for run in self.runs]
        return float(np.mean(within))

    @property
    def pick(self) -> ClockedStep:
        """What the planner would choose of these for the phase alone: the shortest by the time it goes by."""
        basis = basis_of(run.prediction.setting.cluster for run in self.runs)
        return min(self.runs, key=lambda run: step_seconds(run.prediction, basis))

    @property
    def fastest(self) -> ClockedStep:
        return min(self.runs, key=lambda run: run.measured_seconds)

    @property
    def pick_slower_by(self) -> float:
        """The share of the fastest measured time by which the planner's choice is slower; 0 where it is the
        fastest."""
        return self.pick.measured_seconds / self.fastest.measured_seconds - 1


def clock(
    predictions: Sequence[Prediction],
    devices: Sequence[Any],
    budget_seconds: float,
    progress: Progress = lambda what, done, of: None,
    options: EngineOptions | None = None,
) -> tuple[PhaseClock, ...]:
    """Times one step of each prediction on `devices`; prefill first. All are of one cluster.

    options: of what runs there beside. Raises InputError (field "by") where the predictions' cluster has no
    profile, (field "memory") where there is too little of it, and where the engine does not run the model.
    """
    profiles = [expected(each).profile for each in predictions]
    calibrated = profiles[0].probe_seconds if profiles else None
    here = machine(devices)
    options = replace(options or EngineOptions(), devices=devices)
    probe = matmul.program(here, matmul.probe(here))
    found: dict[int, ClockedStep] = {}
    for together in _groups(predictions, here):
        runs, stored = {}, {}
        for each in together:
            progress(f"compiling {each.phase} {each.layout.roles}", len(found) + len(runs), len(predictions))
            setting, storage = each.setting, each.layout.storage
            if storage not in stored:
                stored[storage] = Steps(setting.model, setting.mesh, storage, setting.formats, options)
            tokens = setting.workload.prompt if each.phase == "prefill" else setting.workload.context
            runs[id(each)] = stored[storage].ready(each.layout.roles, each.phase, each.batch, tokens)
        share = budget_seconds * len(together) / len(predictions)
        timings = time_each(runs, probe, share, lambda done, of: progress("timing", done, of))
        slower = timings.probe_seconds / (calibrated or timings.probe_seconds)
        found |= {id(each): ClockedStep(each, timings.runs[id(each)], slower) for each in together}
    phases: tuple[Phase, ...] = ("prefill", "decode")
    return tuple(
        PhaseClock(phase, tuple(found[id(p)] for p in predictions if p.phase == phase))
        for phase in phases
        if any(p.phase == phase for p in predictions)
    )


def _groups(predictions: Sequence[Prediction], here: Machine) -> Iterator[list[Prediction]]:
    """Those that are timed beside one another: as many storages of the weights as there is room for."""
    by_storage: dict[Storage, list[Prediction]] = {}
    for each in predictions:
        by_storage.setdefault(each.layout.storage, []).append(each)
    together: list[Prediction] = []
    held = 0
    for those in by_storage.values():
        needed = those[0].memory_bytes["weights"] + sum(each.memory_bytes["kv"] for each in those)
        if together and held + needed > _ROOM * here.memory_bytes:
            yield together
            together, held = [], 0
        together, held = together + those, held + needed
    if together:
        yield together
