"""The numbers of the cost model: of one candidate, or of many that are priced in one pass."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from partita.sharding.padding import Number

__all__ = ["Amount", "Number", "array", "fraction", "larger", "part_of", "plain", "quotient", "smaller"]

Amount = Number | Fraction
"""Bytes that are read or sent, and sums of a ledger's columns. Where the chips do not divide the bytes of one
candidate, they are an exact fraction, so that the sum over layers is exact too; over a rate it is a float."""


def larger(first: Number, second: Number) -> Number:
    """The larger of two numbers, or of each two in arrays; ints stay ints."""
    arrays = isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
    return np.maximum(first, second) if arrays else max(first, second)


def smaller(first: Number, second: Number) -> Number:
    """The smaller of two numbers, or of each two in arrays; ints stay ints."""
    arrays = isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
    return np.minimum(first, second) if arrays else min(first, second)


def quotient(value: Number, divisor: Number) -> Amount:
    """value / divisor, exactly where both are ints: an int if they divide, else a fraction."""
    if isinstance(value, int) and isinstance(divisor, int):
        found = Fraction(value, divisor)
        return found.numerator if found.denominator == 1 else found
    return value / divisor


def part_of(value: Number, part: Number, whole: Number) -> Amount:
    """value x part / whole; the division comes first where `value` is a large array of candidates."""
    if isinstance(value, np.ndarray) or isinstance(whole, np.ndarray):
        return value * (part / whole)
    return quotient(value * part, whole)


def plain(amount: Amount) -> int | float:
    """The amount of one candidate as JSON takes it: an int stays one."""
    return amount if isinstance(amount, int) else float(amount)


def fraction(amount: Amount) -> Fraction:
    """The amount of one candidate, exactly."""
    return Fraction(amount.item() if isinstance(amount, np.ndarray) else amount)


def array(amount: Amount) -> np.ndarray:
    """The amounts of many candidates; the amount of one is an array without dims."""
    return np.asarray(float(amount) if isinstance(amount, Fraction) else amount)
