"""One rule that a layout breaks or bends: what, by how much, what it costs and what would keep it.

What keeping a rule would save is priced by the bound and, where a plan goes by it, by the estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from partita.cost.estimate import estimate
from partita.cost.ledger import Entry
from partita.cost.prediction import Prediction
from partita.cost.roofline import bound
from partita.planner.pair import Basis, expected, step_seconds
from partita.specs.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Rule:
    """A hard rule stops the run; a soft one is kept at a price, which is that of one chip and one step."""

    name: str
    hard: bool
    message: str
    """One line: what does not divide or fit."""
    alternative: str
    """One line: the nearest choice that keeps the rule."""
    size: int
    """What the model, workload or chip has."""
    needed: int
    """What the layout makes of it or asks for."""
    bytes_per_chip: float = 0.0
    """Memory that keeping the rule would save on one chip."""
    step_seconds: float = 0.0
    """Bound of one step less the bound of a step that keeps the rule, everything else the same."""
    expected_seconds: float | None = None
    """The difference of the estimates; None where that was not asked."""

    @property
    def price(self) -> str:
        """Memory and time it costs, or nothing: "12.6 MB per chip, 0.3 ms a step"."""
        parts = []
        if self.bytes_per_chip >= 1:
            parts.append(f"{format_bytes(self.bytes_per_chip)} per chip")
        seconds = self.step_seconds if self.expected_seconds is None else self.expected_seconds
        if seconds > 0:
            parts.append(f"{format_seconds(seconds)} a step")
        return ", ".join(parts) or "nothing"

    def __str__(self) -> str:
        cost = "" if self.hard else f" (costs {self.price})"
        return f"{self.message}{cost}; {self.alternative}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "hard": self.hard,
            "message": self.message,
            "alternative": self.alternative,
            "size": self.size,
            "needed": self.needed,
            "bytes_per_chip": self.bytes_per_chip,
            "bound": {"step_seconds": self.step_seconds},
            "estimate": None if self.expected_seconds is None else {"step_seconds": self.expected_seconds},
        }


def either(numbers: list[int]) -> str:
    """`4`, `3 or 9`."""
    return " or ".join(f"{number:,}" for number in numbers)


def nearest_divisors(size: int, ways: int) -> list[int]:
    """The largest divisor of `size` below `ways` and the smallest above; those that exist."""
    divisors = {d for n in range(1, int(size**0.5) + 1) if size % n == 0 for d in (n, size // n)}
    below = [d for d in divisors if d < ways]
    above = [d for d in divisors if d > ways]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


Saved = dict[str, float]
_NAMES: dict[Basis, str] = {"bound": "step_seconds", "estimate": "expected_seconds"}


def nothing_saved(basis: Basis) -> Saved:
    """Seconds saved where no step keeps the rule."""
    return {_NAMES[each]: 0.0 for each in _both(basis)}


def saved(prediction: Prediction, other: Prediction, basis: Basis, part: float = 1.0) -> Saved:
    """Seconds of a step that `other` saves, or `part` of them; nothing where it takes longer."""
    return {
        _NAMES[each]: max(0.0, part * (step_seconds(prediction, each) - step_seconds(other, each)))
        for each in _both(basis)
    }


def saved_of_each(prediction: Prediction, basis: Basis, change: Callable[[Entry], Entry]) -> Saved:
    """Seconds of a step that a change of every operation saves a chip of the longest stage."""
    ledger, peaks = prediction.step.ledger, prediction.setting.peaks
    both = ledger, replace(ledger, entries=[change(entry) for entry in ledger.entries])
    before, after = (float(bound(each, peaks).step_seconds) for each in both)
    found = {"step_seconds": max(0.0, before - after)}
    if basis == "estimate":
        profile = expected(prediction).profile
        before, after = (float(estimate(each, peaks, profile).step_seconds) for each in both)
        found["expected_seconds"] = max(0.0, before - after)
    return found


def _both(basis: Basis) -> tuple[Basis, ...]:
    return ("bound",) if basis == "bound" else ("bound", basis)
