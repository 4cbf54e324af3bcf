"""Arguments of the public Python API, whose types nothing else checks: a wrong one is refused by its name."""

from __future__ import annotations

from operator import index
from typing import TypeVar

from partita.errors import InputError

Kind = TypeVar("Kind")


def whole_number(field: str, value: object, least: int = 1) -> int:
    """A whole number, NumPy's too, but no bool. Raises InputError for anything else and below `least`."""
    try:
        number = None if isinstance(value, bool) else index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
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
