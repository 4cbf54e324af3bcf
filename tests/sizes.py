"""How much of a family of cases `make test` takes; all of it is `make test-full`'s.

What is left to the full run is more of the same: other seeds, sizes and combinations whose every pair of
choices is tested without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

USUAL, MANY = 50, 500
"""Examples of a property in `make test` and in the full run, unless it asks for fewer or more."""


def many(number: int) -> int:
    """Examples of a property: `number`, and in the full run ten times as many."""
    return number * settings().max_examples // USUAL


def examples(number: int) -> settings:
    """Bounds a property to so `many` examples."""
    return settings(max_examples=many(number))


def some(number: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of a parametrised test, those after the first `number` marked `full`."""
    return [case if i < number else full(case) for i, case in enumerate(cases)]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of a parametrised test, all but each `step`-th marked `full`."""
    return [case if i % step == 0 else full(case) for i, case in enumerate(cases)]


def full(case: Any) -> Any:
    """A case for the full run alone; of several arguments a tuple."""
    if hasattr(case, "marks"):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.full], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)
