"""What keeping a rule would save of a step, by the bound and, where a plan goes by it, by the estimate.

As keyword arguments of `Rule`. Knows nothing about which rules there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from partita.cost.estimate import estimate
from partita.cost.ledger import Entry
from partita.cost.prediction import Prediction
from partita.cost.roofline import bound
from partita.planner.basis import Basis, expected, step_seconds

Saved = dict[str, float]
_NAMES: dict[Basis, str] = {"bound": "step_seconds", "estimate": "expected_seconds"}


def nothing_saved(basis: Basis) -> Saved:
    """Where no step keeps the rule."""
    return {_NAMES[each]: 0.0 for each in _both(basis)}


def saved(prediction: Prediction, other: Prediction, basis: Basis, part: float = 1.0) -> Saved:
    """By `other`, of a step; `part` of it, and nothing where it takes longer."""
    return {
        _NAMES[each]: max(0.0, part * (step_seconds(prediction, each) - step_seconds(other, each)))
        for each in _both(basis)
    }


def saved_of_each(prediction: Prediction, basis: Basis, change: Callable[[Entry], Entry]) -> Saved:
    """By a change of every operation, of what a chip of the longest stage does in a step."""
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
