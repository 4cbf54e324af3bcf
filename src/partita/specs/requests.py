"""Traffic: the requests that are asked of a model, as a distribution of their lengths.

Knows nothing about when they arrive, nor about how long anything takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partita.errors import InputError
from partita.specs.buckets import representatives
from partita.specs.lengths import RANGES, Floats, Integers, Lengths, weighted_quantile

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
        found, weight = representatives(rows, self.weight, most)
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
