"""The stopwatch on a clock that only the programs and the probe move; nothing here is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from partita.measure import stopwatch
from partita.measure.stopwatch import Timings, time_each

PROBE = 0.02
LONG = 0.05
"""Seconds; a visit of a program this long is one run of it."""


@dataclass
class Clock:
    """Time that stands still between runs. slow: by what every run takes longer, as a function of time."""

    slow: Callable[[float], float] = lambda now: 1.0
    now: float = 100.0
    disturbed: bool = False
    ran: list[str] = field(default_factory=list)

    def program(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.ran.append(name)
            self.now += seconds * self.slow(self.now)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: found.now)
    return found


def timed(clock: Clock, seconds: dict[str, float], budget: float = 1e9, **more) -> Timings[str]:
    runs = {name: clock.program(name, took) for name, took in seconds.items()}
    return time_each(runs, clock.program("probe", PROBE), budget, **more)


def test_the_clock_is_not_the_machines(clock: Clock):
    assert time.perf_counter() == 100


def test_on_a_steady_machine_every_program_takes_what_it_takes(clock: Clock):
    found = timed(clock, {"short": 1e-4, "long": LONG})
    for name, seconds in (("short", 1e-4), ("long", LONG)):
        assert found.runs[name].seconds == pytest.approx(seconds)
        assert found.runs[name].wall_seconds == pytest.approx(seconds)
    assert found.probe_seconds == pytest.approx(PROBE)


def test_programs_take_turns_with_the_probe_between_them(clock: Clock):
    timed(clock, {"a": LONG, "b": LONG}, budget=0)
    warm, once = ["probe", "a", "b"], ["a", "b", "probe"]
    assert clock.ran == [*warm, *once, "probe", *["a", "probe", "b", "probe"] * 3]


def test_short_programs_are_repeated_and_long_ones_are_not(clock: Clock):
    found = timed(clock, {"short": 1e-3, "long": LONG}, budget=0)
    assert found.runs["short"].visits == found.runs["long"].visits == 3
    assert clock.ran.count("long") == 2 + 3  # to warm up, to see how long it takes, and the visits
    assert clock.ran.count("short") == 2 + 3 * 15


@pytest.mark.parametrize("slower", [1.5, 4.0])
def test_a_visit_in_a_slow_while_is_scaled_by_the_probes_around_it(clock: Clock, slower: float):
    """A machine that slows down for good at some time: what was seen after is brought to its best speed."""
    clock.slow = lambda now: slower if now > 101 else 1.0
    found = timed(clock, {"a": LONG, "b": LONG})
    assert found.probe_seconds == pytest.approx(PROBE)
    for run in found.runs.values():
        assert run.seconds == pytest.approx(LONG)
        assert run.wall_seconds == pytest.approx(slower * LONG)  # most visits were slow
        assert run.visits == 15


def test_visits_that_met_a_disturbance_the_probe_saw_do_not_count(clock: Clock):
    """Programs suffer from it threefold what the probe does, so that scaling alone would not help."""
    busy = {3, 4, 9, 11}  # rounds
    rounds = iter(range(-2, 100))  # twice before the first round

    def disturbed() -> None:
        clock.disturbed = next(rounds) in busy
        clock.now += LONG * (6 if clock.disturbed else 1)

    def probe() -> None:
        clock.now += PROBE * (2 if clock.disturbed else 1)

    found = time_each({"a": disturbed}, probe, 1e9)
    assert found.runs["a"].visits == 15
    assert found.runs["a"].seconds == pytest.approx(LONG)


@pytest.mark.parametrize("visits", [3, 4, 14])
def test_the_budget_is_kept_with_visits_to_spare(clock: Clock, visits: int):
    a_round = 2 * LONG + 2 * PROBE
    found = timed(clock, {"a": LONG, "b": LONG}, budget=(visits + 0.5) * a_round)
    assert {run.visits for run in found.runs.values()} == {visits}


@pytest.mark.parametrize(("budget", "visits"), [(0, 3), (1e9, 15)])
def test_however_small_or_large_the_budget_there_is_a_least_and_a_most(
    clock: Clock, budget: float, visits: int
):
    assert timed(clock, {"a": LONG}, budget).runs["a"].visits == visits


def test_progress_counts_visits_up_to_the_most_there_can_be(clock: Clock):
    told: list[tuple[int, int]] = []
    timed(clock, {"a": LONG, "b": LONG}, budget=0, progress=lambda done, of: told.append((done, of)))
    assert told == [(done, 30) for done in range(1, 7)]


def test_the_best_speed_is_one_that_was_seen(clock: Clock):
    """One of four probes is fast: the first decile lies between those seen, not below the least."""
    clock.slow = lambda now: 1.0 if now < 100.15 else 3.0
    found = timed(clock, {"a": LONG}, budget=0)
    assert PROBE * 0.999 < found.probe_seconds < 3 * PROBE
    assert found.runs["a"].seconds > 0


def test_a_program_that_fails_fails_the_timing(clock: Clock):
    def broken() -> None:
        raise ValueError("out of memory")

    with pytest.raises(ValueError, match="out of memory"):
        time_each({"a": broken}, clock.program("probe", PROBE), 1)
