"""Arguments of the public Python API, whose types nothing else checks: a wrong one is refused by its name."""

from __future__ import annotations

from operator import index
from typing import TypeVar

from partita.errors import InputError

Kind = TypeVar("Kind")


def as_whole(value: object) -> int | None:
    """The value, if it is a whole number, NumPy's too, but no bool; else None."""
    try:
        return None if isinstance(value, bool) else index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def whole_number(field: str, value: object, least: int = 1) -> int:
    """The same. Raises InputError for what is none, and below `least`."""
    number = as_whole(value)
    if number is None or number < least:
        raise InputError(field, _short(value), f"a whole number of at least {least} is accepted")
    return number


def of_type(field: str, value: object, kind: type[Kind] | tuple[type[Kind], ...], accepted: str) -> Kind:
    """The value, if it is of a type. Raises InputError saying what is accepted for anything else."""
    if not isinstance(value, kind):
        raise InputError(field, _short(value), f"{accepted} is accepted")
    return value


def _short(value: object) -> str:
    return f"{value!r:.60}"
