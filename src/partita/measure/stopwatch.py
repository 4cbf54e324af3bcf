"""Times programs beside one another on a machine whose speed drifts.

Programs are visited in turn, round after round, so that a slow minute meets all of them alike. Every visit
is enclosed in two runs of a fixed probe, which say how fast the machine was. Of a program those visits
count at which it was fastest, the better half; their times are scaled to the probe's best, and the median
is taken. Knows nothing about what the programs do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Run = Callable[[], Any]
"""Starts a program and returns arrays that are ready when it has ended."""

_VISIT_SECONDS = 0.015
"""A visit repeats its program until this much time has passed, so that clocks and starts do not count."""

_PROBE_SECONDS = 0.02
"""The same of the probe."""

_FEWEST, _MOST = 3, 15
"""Visits of a program."""


@dataclass(frozen=True)
class Timed:
    """Seconds of one run: the median of visits, scaled to the machine's best speed; and as the clock had
    it."""

    seconds: float
    wall_seconds: float
    visits: int


@dataclass(frozen=True)
class Timings(Generic[Key]):
    """The time of each program, and seconds of the probe at the machine's best speed."""

    runs: dict[Key, Timed]
    probe_seconds: float


def time_each(
    runs: Mapping[Key, Run],
    probe: Run,
    budget_seconds: float,
    progress: Callable[[int, int], None] | None = None,
) -> Timings[Key]:
    """Seconds of each program. All have `_FEWEST` visits, more while the budget lasts; `progress(done, of)`
    counts visits."""
    from jax import block_until_ready

    for run in (probe, *runs.values()):
        block_until_ready(run())
    repeats = {key: max(1, round(_VISIT_SECONDS / _once(run))) for key, run in runs.items()}
    probing = max(1, round(_PROBE_SECONDS / _once(probe)))
    found: dict[Key, list[tuple[float, float]]] = {key: [] for key in runs}
    probes = [_mean(probe, probing)]
    start, done = time.perf_counter(), 0
    for round_ in range(_MOST):
        for key, run in runs.items():
            took = _mean(run, repeats[key])
            probes.append(_mean(probe, probing))
            found[key].append((took, (probes[-2] + probes[-1]) / 2))
            done += 1
            if progress is not None:
                progress(done, _MOST * len(runs))
        spent = time.perf_counter() - start
        if round_ + 1 >= _FEWEST and spent * (round_ + 2) / (round_ + 1) > budget_seconds:
            break
    best = statistics.quantiles(probes, n=10, method="inclusive")[0]
    return Timings({key: _timed(visits, best) for key, visits in found.items()}, best)


def _timed(visits: list[tuple[float, float]], best: float) -> Timed:
    """The time of a program whose visits are given: (seconds, the probe's seconds around it)."""
    undisturbed = sorted(visits, key=lambda visit: visit[1])[: (len(visits) + 1) // 2]
    return Timed(
        seconds=statistics.median(took * best / around for took, around in undisturbed),
        wall_seconds=statistics.median(took for took, _ in visits),
        visits=len(visits),
    )


def _once(run: Run) -> float:
    return _mean(run, 1)


def _mean(run: Run, times: int) -> float:
    """Seconds of each of so many runs."""
    from jax import block_until_ready

    start = time.perf_counter()
    for _ in range(times):
        block_until_ready(run())
    return (time.perf_counter() - start) / times
