"""Typed look-ups in a GGUF file's metadata. Knows nothing about what the keys mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partita.errors import InputError


class Metadata:
    """Metadata by key. A look-up raises InputError (field the key) for a value of another type.

    Where the key is absent it gives `default`, and without one raises InputError; `get` gives None.
    """

    def __init__(self, values: dict[str, object], path: Path):
        self._values = values
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key in self._values if key.startswith(prefix))

    def get(self, key: str) -> object:
        return self._values.get(key)

    def wrong(self, key: str, message: str) -> InputError:
        """The error for this key's value; the message says what would be accepted."""
        return InputError(key, _brief(self.get(key)), f"{message} (in {self.path})")

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"must be one whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0. Stored in float32, and given back as the decimal number that was meant."""
        value = self._values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-37 < value < 1e37:
            raise self.wrong(key, "must be one finite number above 0")
        return float(str(np.float32(value)))

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def text(self, key: str) -> str:
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "must be text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "must be a list of texts")
        return value

    def numbers(self, key: str, count: int) -> np.ndarray:
        """So many numbers, none of them NaN."""
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
            raise self.wrong(key, "must be a list of numbers")
        numbers = np.array(value, np.float64)
        if len(numbers) != count or np.isnan(numbers).any():
            raise self.wrong(key, f"must be {count} numbers")
        return numbers

    def integers(self, key: str) -> list[int]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.wrong(key, "must be a list of whole numbers")
        return value


def _brief(value: object) -> object:
    """A value fit for one line: "missing" for none, the start of a long one."""
    if value is None:
        return "missing"
    text = repr(value[:4] if isinstance(value, list) else value)
    return text if len(text) <= 60 else text[:57] + "..."
