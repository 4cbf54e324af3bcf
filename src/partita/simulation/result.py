"""What users of a simulated server see, and how full it is: percentiles, goodput, queue, slots, memory.

Times to the first token (TTFT), between two tokens of a request on average (TPOT), between any two tokens
(ITL), and to the end, from when a request comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from partita.specs.traffic import weighted_quantile

Floats = NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Limits:
    """Seconds that a request's times may take to count as good; None for any."""

    ttft: float | None = None
    tpot: float | None = None

    def kept(self, ttft: Floats, tpot: Floats, output: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of which requests [n] they are kept; `tpot` as `tpot_of` gives it. One token has none."""
        found = np.ones(len(ttft), bool)
        if self.ttft is not None:
            found &= ttft <= self.ttft
        if self.tpot is not None:
            between = np.zeros(len(ttft))
            between[output > 1] = tpot
            found &= between <= self.tpot
        return found


@dataclass(frozen=True)
class Series:
    """Means over parts of the time, of which the last may be shorter: where each begins and how long it is,
    in seconds [n], and in each [n] the requests that wait, slots in use, and the share of memory that is held
    (0 where slots have memory of their own)."""

    start: Floats
    seconds: Floats
    waiting: Floats
    slots: Floats
    memory: Floats

    def mean(self, name: Literal["waiting", "slots", "memory"]) -> float:
        """Over all of the time."""
        return float(getattr(self, name) @ self.seconds / self.seconds.sum())


@dataclass(frozen=True, eq=False)
class Result:
    """A simulated load. Arrays have an entry for each request that counts, in the order in which they came.

    arrival: seconds. ttft, e2e: seconds. output: tokens written. itl: seconds between tokens and how often
    each came, [n] and [n].
    """

    policy: str
    arrival: Floats
    ttft: Floats
    e2e: Floats
    output: NDArray[np.int64]
    prompt: NDArray[np.int64]
    itl: tuple[Floats, Floats]
    seconds: float  # from the first arrival to the last end
    busy_share: float  # of all time, that of requests that do not count among it
    steps: int
    series: Series
    most_waiting: int
    most_slots: int
    preemptions: int
    reused_tokens: int
    moves: int

    @cached_property
    def tpot(self) -> Floats:
        """Of the requests that write more than one token."""
        return tpot_of(self.ttft, self.e2e, self.output)

    def percentiles(self) -> dict[str, dict[str, float] | None]:
        """Of each time its mean and percentiles; None where there is none, with outputs of one token."""
        found = {name: percentiles_of(getattr(self, name)) for name in ("ttft", "tpot", "e2e")}
        return {**found, "itl": percentiles_of(*self.itl)}

    @property
    def requests_per_second(self) -> float:
        return len(self.ttft) / self.seconds

    @property
    def output_tokens_per_second(self) -> float:
        return float(self.output.sum()) / self.seconds

    def good(self, limits: Limits) -> float:
        """Share of the requests within the limits."""
        return float(limits.kept(self.ttft, self.tpot, self.output).mean())

    def summary(self) -> dict[str, Any]:
        """Without limits, and what is over time."""
        found = self.as_json(Limits())
        return {key: value for key, value in found.items() if not key.startswith("good") and key != "series"}

    def as_json(self, limits: Limits) -> dict[str, Any]:
        """The object of one policy in what `simulate --json` prints; its keys are stable."""
        good = self.good(limits)
        return {
            "policy": self.policy,
            "requests": len(self.ttft),
            "seconds": self.seconds,
            "busy_share": self.busy_share,
            "steps": self.steps,
            **{f"{name}_seconds": found for name, found in self.percentiles().items()},
            "good_share": good,
            "goodput_requests_per_second": good * self.requests_per_second,
            "requests_per_second": self.requests_per_second,
            "output_tokens_per_second": self.output_tokens_per_second,
            "waiting": {"mean": self.series.mean("waiting"), "most": self.most_waiting},
            "slots": {"mean": self.series.mean("slots"), "most": self.most_slots},
            "memory_share": {
                "mean": self.series.mean("memory"),
                "most": float(self.series.memory.max()),
            },
            "preemptions": self.preemptions,
            "reused_tokens": self.reused_tokens,
            "layout_switches": self.moves,
            "series": {
                "start_seconds": self.series.start.tolist(),
                "waiting": self.series.waiting.tolist(),
                "slots": self.series.slots.tolist(),
                "memory_share": self.series.memory.tolist(),
            },
        }


def tpot_of(ttft: Floats, e2e: Floats, output: NDArray[np.int64]) -> Floats:
    """Seconds between two tokens, the mean of each request that wrote more than one, in their order."""
    more = output > 1
    return (e2e - ttft)[more] / (output[more] - 1)


def percentiles_of(values: Floats, weight: Floats | None = None) -> dict[str, float] | None:
    """Mean and percentiles, `p50` and so on, of values that count as their weights say; None without any."""
    if not len(values):
        return None
    weight = np.ones(len(values)) if weight is None else weight
    found: Mapping[str, float] = {
        f"p{share}": float(weighted_quantile(values, weight, share / 100)) for share in PERCENTILES
    }
    return {"mean": float(values @ weight / weight.sum()), **found}
