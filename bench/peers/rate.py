"""How a peer is timed: fresh settings priced one after another on one core until the time is up.

Runs inside a peer's own environment, so it needs nothing but the standard library. Knows no peer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BATCHES = range(1, 65)
CONTEXTS = range(256, 4097, 64)
"""Sequences, and tokens of each, that every peer prices: all contexts of a batch before the next batch."""

SLICES = 5

Price = Callable[[int, int, int], Any]
"""(chips a tensor is split over, sequences, tokens of each) -> an answer, None where memory runs out."""


@dataclass(frozen=True)
class Job:
    """What `bench/planner.py` asks of a runner."""

    seconds: float
    source: Path | None  # a checkout of a peer that no registry has


def read_job(argv: list[str] | None = None) -> Job:
    """Reads the command line and pins this process to the core it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--core", type=int)
    parser.add_argument("--source", type=Path)
    found = parser.parse_args(argv)
    if found.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {found.core})
    return Job(found.seconds, found.source)


def settings(parallel: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """(chips a tensor is split over, sequences, tokens of each), without end.

    A second round has other token counts, so that no peer's cache of results is what gets timed.
    """
    splits = tuple(parallel)
    for shift in itertools.count():
        for batch, context, split in itertools.product(BATCHES, CONTEXTS, splits):
            yield split, batch, context + shift


def measure(
    price: Price,
    parallel: Iterable[int],
    seconds: float,
    phases: int,
    refused: tuple[type[BaseException], ...] = (),
) -> dict[str, Any]:
    """Calls `price(split, batch, context)` for `seconds` after a first answer, which may load what it needs.

    phases: how many phases one call prices; each counts as a configuration. A call that answers None or
    raises one of `refused` is the peer's word that memory runs out: not counted, yet its time is.
    Raises RuntimeError where none of the first 1000 settings gets an answer.
    """
    order = settings(parallel)

    def answer() -> Any:
        try:
            return price(*next(order))
        except refused:
            return None

    begun = time.perf_counter()
    with quiet():
        first = next((found for _ in range(1000) if (found := answer()) is not None), None)
        if first is None:
            raise RuntimeError("none of the first 1000 settings got an answer")
        loading = time.perf_counter() - begun
        found = timed(lambda: 0 if answer() is None else phases, seconds)
    return found | {"phases_per_call": phases, "first_call_seconds": loading, "first_answer": first}


def timed(work: Callable[[], int], seconds: float) -> dict[str, Any]:
    """Repeats `work`, which says how many configurations it priced, for `seconds` in slices of a fifth.

    The rate is that of all slices together, by the clock and by this process' own time; the slowest and the
    fastest slice say how quiet the machine was.
    """
    rates, calls, priced = [], 0, 0
    spent, own = 0.0, time.process_time()
    for _ in range(SLICES):
        begun, before = time.perf_counter(), priced
        while (took := time.perf_counter() - begun) < seconds / SLICES:
            priced += work()
            calls += 1
        rates.append((priced - before) / took)
        spent += took
    return {
        "configurations_per_second": priced / spent,
        "configurations_per_own_second": priced / (time.process_time() - own),
        "slowest_slice": min(rates),
        "fastest_slice": max(rates),
        "configurations": priced,
        "calls": calls,
        "seconds": spent,
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Sends what a peer prints to nowhere: the answer is the one line of JSON on standard output."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def report(found: dict[str, Any]) -> None:
    """Prints the result as one line of JSON, the last of standard output."""
    print(json.dumps(found), file=sys.stdout, flush=True)
