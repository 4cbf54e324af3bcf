"""One rule that a layout breaks or bends: what, by how much, what it costs and what would keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
