"""Lengths in tokens with their weights: `512:0.7,4096:0.3`; and the figures of a weighted set of numbers.

Knows nothing about what the lengths are of: `requests.py` joins prompts, outputs and prefixes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partita.errors import InputError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

RANGES = {"prompt": (1, 10**9), "output": (1, 10**6), "prefix": (0, 10**9)}
"""Smallest and largest length of each field, those of `Workload`."""

MOST_LENGTHS = 1000
"""Lengths that one text may list; more are a trace, which is a file."""

WEIGHTS = "must be a number from 1e-12 to 1e12"
_WEIGHT = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, eq=False)
class Lengths:
    """How long something is, as a distribution.

    tokens: distinct lengths, ascending, int64 [n]. weight: the share of each, float64 [n], sum 1.
    """

    tokens: Integers
    weight: Floats

    @property
    def mean(self) -> float:
        """Tokens; the mean over requests."""
        return float(self.tokens @ self.weight)

    @property
    def longest(self) -> int:
        return int(self.tokens[-1])

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` (0 to 1) of the requests do not exceed."""
        return int(weighted_quantile(self.tokens, self.weight, share))


def parse_lengths(text: str, field: str) -> Lengths:
    """The lengths of a text: `512`, `512,4096` (equally often) or `512:0.7,4096:0.3` (length:weight).

    Weights may have any sum: `512:7,4096:3` is the same. `field` is prompt, output, prefix or another name;
    it decides the smallest and largest length. Raises InputError on it, naming the entry that is wrong.
    """
    example = "accepted are lengths such as 512, or lengths with weights such as 512:0.7,4096:0.3"
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > MOST_LENGTHS:
        message = f"at most {MOST_LENGTHS:,} lengths are accepted in a text; give a trace file for more"
        raise InputError(field, f"{text[:20]}…", message)
    least, most = RANGES.get(field, (1, 10**9))
    tokens, weights = [], []
    for entry in entries:
        length, colon, share = (part.strip() for part in entry.partition(":"))
        number = whole(length, least, most)
        if number is None:
            message = f"{length[:40]!r} must be a whole number of tokens from {least} to {most:,}; {example}"
            raise InputError(field, text, message)
        weight = positive(share) if colon else None
        if colon and weight is None:
            raise InputError(field, text, f"the weight {share[:40]!r} of {length} {WEIGHTS}; {example}")
        tokens.append(number)
        weights.append(weight)
    given = [weight for weight in weights if weight is not None]
    if 0 < len(given) < len(weights):
        raise InputError(field, text, f"some lengths have a weight and some have none; {example}")
    return lengths_of(np.array(tokens, np.int64), np.array(given or [1.0] * len(tokens)))


def lengths_of(tokens: ArrayLike, weight: ArrayLike) -> Lengths:
    """The distribution of `tokens` [n], whole numbers that may repeat, with any positive weights [n]."""
    distinct, position = np.unique(np.asarray(tokens, np.int64), return_inverse=True)
    summed = np.bincount(position, np.asarray(weight, np.float64))
    return Lengths(distinct, summed / summed.sum())


def weighted_quantile(values: ArrayLike, weight: ArrayLike, share: float) -> float:
    """The smallest of `values` [n] which at least `share` (0 to 1) of the weight [n] does not exceed."""
    values, weight = np.asarray(values), np.asarray(weight, np.float64)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    # a share that is met but for rounding is met
    first = np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))
    return values[order][min(int(first), len(values) - 1)]


def whole(text: str, least: int, most: int) -> int | None:
    """A whole number written in plain digits from `least` to `most`, or None."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    number = int(digits) if len(digits) < 20 else most + 1
    return number if least <= number <= most else None


def positive(text: str) -> float | None:
    """A weight: a plain number in the range of `WEIGHTS`, or None."""
    number = float(text) if _WEIGHT.fullmatch(text) else math.nan
    return number if 1e-12 <= number <= 1e12 else None
