"""The planner's benchmark: what it counts, and that failures are said and not counted."""

from __future__ import annotations

import time

import pytest
from bench import commands
from bench.peers import rate

SECONDS = 0.05


def test_every_phase_of_an_answered_call_counts_and_a_refused_call_does_not():
    def price(split: int, batch: int, context: int) -> str | None:
        time.sleep(1e-4)
        if split == 2:
            raise MemoryError
        return None if split == 4 else "answer"

    found = rate.measure(price, (1, 2, 4, 8), SECONDS, phases=2, refused=(MemoryError,))
    assert found["configurations"] == pytest.approx(found["calls"], abs=4)  # half the calls, two phases each
    assert found["configurations_per_second"] == pytest.approx(found["configurations"] / found["seconds"])
    assert found["slowest_slice"] <= found["configurations_per_second"] <= found["fastest_slice"]
    assert found["seconds"] >= SECONDS
    assert found["first_answer"] == "answer"


def test_a_peer_that_never_answers_or_breaks_gets_no_rate():
    def refuse(split: int, batch: int, context: int) -> None:
        return None

    def fail(split: int, batch: int, context: int) -> None:
        raise KeyError("broken")

    with pytest.raises(RuntimeError, match="none of the first"):
        rate.measure(refuse, (1,), SECONDS, phases=1)
    with pytest.raises(KeyError):
        rate.measure(fail, (1,), SECONDS, phases=1, refused=(MemoryError,))


def test_no_setting_comes_twice():
    order, one_round = rate.settings((4, 8)), len(rate.BATCHES) * len(rate.CONTEXTS) * 2
    seen = [next(order) for _ in range(2 * one_round)]
    assert len(set(seen)) == len(seen)


def test_a_command_is_timed_with_its_memory_and_a_failed_one_says_why():
    timed = commands.time_command(["--help"], 2, {})
    assert 0 < timed["best_seconds"] <= timed["median_seconds"]
    assert timed["peak_bytes"] > 5e6  # no Python is smaller
    failed = commands.time_command(["plan", "no-such-model", "--on", "h100:1"], 2, {})
    assert "no-such-model" in failed["failed"]
    assert "best_seconds" not in failed
