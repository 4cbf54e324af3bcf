"""Traffic: the requests that a model is sent, as a distribution of their lengths in tokens.

Lengths have weights (`512:0.7,4096:0.3`); `Traffic` joins those of prompts, outputs and prefixes, and
`Traffic.buckets` finds few whole requests that stand for many, with the same mean lengths. When
requests arrive is not part of it.
"""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

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
        """The mean length in tokens over all requests."""
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


Field = Literal["prompt", "output", "prefix", "new", "context"]
FIELDS: tuple[Field, ...] = ("prompt", "output", "prefix", "new", "context")

FEWEST_BUCKETS = 4
"""Whole requests that keep three means exactly."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests and how often each comes. All arrays have one entry for each of n requests and are read-only.

    prompt: tokens of the prompt, the prefix included, int64 [n], at least 1.
    output: tokens written, int64 [n], at least 1.
    prefix: tokens at the start of the prompt whose keys and values are cached, int64 [n], at least 0 and
        less than the prompt.
    weight: share of the requests, float64 [n]; any positive numbers are accepted and scaled to the sum 1.

    Raises InputError, naming the field and the first request (from 0) that is wrong.
    """

    prompt: Integers
    output: Integers
    prefix: Integers
    weight: Floats

    def __init__(
        self,
        prompt: ArrayLike,
        output: ArrayLike,
        prefix: ArrayLike | None = None,
        weight: ArrayLike | None = None,
    ):
        count = np.size(prompt)
        if not count:
            raise InputError("prompt", None, "there are no requests; at least one is needed")
        columns = {
            "prompt": _counts("prompt", prompt, count),
            "output": _counts("output", output, count),
            "prefix": _counts("prefix", np.zeros(count, np.int64) if prefix is None else prefix, count),
            "weight": _weights(np.ones(count) if weight is None else weight, count),
        }
        _refuse(
            "prefix",
            columns["prefix"],
            columns["prefix"] >= columns["prompt"],
            "must be less than the prompt",
        )
        for name, column in columns.items():
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @classmethod
    def of(cls, prompt: int | Lengths, output: int | Lengths, prefix: int | Lengths = 0) -> Traffic:
        """Requests of one shape, or of independent distributions of shapes (every combination of them).

        Raises InputError on `prefix` where the longest prefix is not shorter than the shortest prompt.
        """
        parts = [_lengths(part) for part in (prompt, output, prefix)]
        shape = [len(tokens) for tokens, _ in parts]
        if np.prod(shape, dtype=float) > 2e6:
            counts = " x ".join(map(str, shape))
            raise InputError("prompt", counts, "too many combinations of lengths; give a trace of requests")
        tokens = [grid.reshape(-1) for grid in np.meshgrid(*(tokens for tokens, _ in parts), indexing="ij")]
        shares = np.meshgrid(*(weight for _, weight in parts), indexing="ij")
        return cls(*tokens, weight=np.prod(shares, axis=0).reshape(-1))

    @property
    def requests(self) -> int:
        return len(self.weight)

    @cached_property
    def new(self) -> Integers:
        """Tokens that a prefill computes: the prompt without its cached prefix."""
        return self.prompt - self.prefix

    @cached_property
    def context(self) -> Integers:
        """Positions of the cache that each request has filled at its end: prompt and output."""
        return self.prompt + self.output

    @property
    def mean_prompt(self) -> float:
        return self.mean("prompt")

    @property
    def mean_output(self) -> float:
        return self.mean("output")

    @property
    def mean_prefix(self) -> float:
        return self.mean("prefix")

    @property
    def longest(self) -> int:
        """Positions that a slot of a cache must have to hold any of the requests to its end."""
        return int(self.context.max())

    def mean(self, field: Field) -> float:
        """Tokens of `field`, the mean over requests."""
        return float(getattr(self, field) @ self.weight)

    def quantile(self, field: Field, share: float) -> int:
        """The smallest length of `field` which at least `share` (0 to 1) of the requests do not exceed."""
        return int(weighted_quantile(getattr(self, field), self.weight, share))

    def buckets(self, most: int = 16) -> Traffic:
        """At most `most` requests that stand for all of them; `most` is at least 4.

        They have whole lengths and the same mean prompt, prefix, new tokens and output; each length is the
        mean over a group of similar requests, give or take two tokens. Means of products and squares of
        lengths are those of the groups' means, so they fall short by the variance within groups.

        Raises InputError on `buckets` where `most` is below 4.
        """
        if most < FEWEST_BUCKETS:
            raise InputError("buckets", most, f"must be at least {FEWEST_BUCKETS}")
        rows = np.stack([self.new, self.prefix, self.output], axis=1)
        found, weight = _representatives(rows, self.weight, most)
        new, prefix, output = found.T
        return Traffic(new + prefix, output, prefix, weight)

    def as_json(self) -> dict[str, Any]:
        """How many requests, the longest, and mean and quantiles of every field in tokens."""
        figures: dict[str, Any] = {"requests": self.requests}
        for field in FIELDS:
            quantiles = {f"p{share}": self.quantile(field, share / 100) for share in (50, 90, 99)}
            longest = int(getattr(self, field).max())
            figures[field] = {"mean": self.mean(field), **quantiles, "longest": longest}
        return figures


def _lengths(given: int | Lengths) -> tuple[NDArray, Floats]:
    if isinstance(given, Lengths):
        return given.tokens, given.weight
    return np.array([given]), np.ones(1)


def _counts(field: str, given: ArrayLike, count: int) -> Integers:
    values = np.asarray(given).reshape(-1)
    least, most = RANGES[field]
    message = f"must be a whole number from {least} to {most:,}"
    if len(values) != count:
        raise InputError(field, len(values), f"lengths are given for {count} prompts; as many are needed")
    if values.dtype.kind not in "iuf":
        raise InputError(field, values[0], message)
    _refuse(field, values, ~((values >= least) & (values <= most) & (values == np.floor(values))), message)
    return values.astype(np.int64)


def _weights(given: ArrayLike, count: int) -> Floats:
    values = np.asarray(given)
    if values.dtype.kind not in "iuf" or values.size != count:
        raise InputError("weight", None, f"must be {count} numbers, one for each prompt")
    values = values.astype(np.float64).reshape(-1)
    _refuse("weight", values, ~((values > 0) & (values <= 1e12)), "must be above 0 and at most 1e12")
    return values / values.sum()


def _refuse(field: str, values: NDArray, wrong: NDArray, message: str) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(field, values[first].item(), f"{message} (request {first})")


def _merged(rows: Integers, weight: Floats) -> tuple[Integers, Floats]:
    """Equal rows of `rows` [n, columns] as one, their weights [n] added; in ascending order."""
    distinct, position = np.unique(rows, axis=0, return_inverse=True)
    summed = np.zeros(len(distinct))
    np.add.at(summed, position.reshape(-1), weight)
    return distinct, summed


def _representatives(rows: Integers, weight: Floats, most: int) -> tuple[Integers, Floats]:
    """At most `most` rows of whole numbers, with weights, that keep the weighted mean of every column.

    rows [n, columns], weight [n]. `most` must be more than the number of columns. Rows that differ no more
    than that allows are only merged. Else they are put in groups of similar rows, and each group is
    represented by a row that differs from the group's mean by less than one in every column (two, for one
    group): what rounding down leaves is carried to the next heavier group, and the heaviest is represented by
    up to columns + 1 neighbouring rows whose mean is what is left, so that nothing is lost.
    """
    rows, weight = _merged(rows, weight)
    if len(rows) <= most:
        return rows, weight
    columns = rows.shape[1]
    groups = sorted(_groups(rows, weight, most - columns), key=lambda group: weight[group].sum())
    found, weights, carry = [], [], np.zeros(columns)
    for group in groups:
        inside, shares = rows[group], weight[group]
        total = shares.sum()
        # a carry is less than one unit of a lighter group, so less than one unit of this group
        mean = np.clip(shares @ inside / total, inside.min(axis=0), inside.max(axis=0)) + carry / total
        if group is groups[-1]:
            corners, parts = _corners(mean)
            found.extend(np.maximum(corners, inside.min(axis=0)))
            weights.extend(total * parts)
        else:
            nearest = np.maximum(np.floor(mean + 1e-9), inside.min(axis=0))
            carry = (mean - nearest) * total
            found.append(nearest)
            weights.append(total)
    return _merged(np.array(found).astype(np.int64), np.array(weights))


def _groups(rows: Integers, weight: Floats, most: int) -> list[Integers]:
    """Positions in `most` groups: the group with the largest weighted variance is cut at its mean, again
    and again, across the column that varies most."""
    heap = [_spread(rows, weight, np.arange(len(rows)), 0)]
    while len(heap) < most:
        _, _, column, cut, group = heapq.heappop(heap)
        low = rows[group, column] <= cut
        for part in (group[low], group[~low]):
            heapq.heappush(heap, _spread(rows, weight, part, int(part[0])))
    return [group for *_, group in heap]


def _spread(rows: Integers, weight: Floats, group: Integers, tie: int) -> tuple:
    """What a group is sorted by (most weighted variance first, `tie` where equal), and where to cut it."""
    inside, shares = rows[group], weight[group]
    mean = shares @ inside / shares.sum()
    variance = shares @ (inside - mean) ** 2
    column = int(np.argmax(variance))
    cut = min(mean[column], inside[:, column].max() - 1)  # something is left on both sides
    return -variance[column], tie, column, cut, group


def _corners(point: Floats) -> tuple[Floats, Floats]:
    """Whole points around `point` [columns] and weights (sum 1) with which they have it as their mean.

    From the corner below, one column after another steps up, the largest fraction first: the corners of the
    simplex that holds the point (Kuhn 1960).
    """
    below = np.floor(point)
    fraction = point - below
    order = np.argsort(-fraction, kind="stable")
    steps = np.vstack([np.zeros(len(point)), np.cumsum(np.eye(len(point))[order], axis=0)])
    heights = np.concatenate([[1.0], fraction[order], [0.0]])
    parts = heights[:-1] - heights[1:]
    kept = parts > 1e-12
    return (below + steps)[kept], parts[kept] / parts[kept].sum()
