"""Durations in, and durations, bytes and counts out, in the units people write.

Knows nothing about what is measured. Bytes are decimal: 1 GB is 10^9 bytes.
"""

from __future__ import annotations

import math
import re

from partita.errors import InputError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ns|us|µs|μs|ms|s|min|h)")


def parse_duration(text: str, field: str = "duration") -> float:
    """Seconds of a text such as `30ms`, `1.5s`, `200us`, `2 min`.

    Raises InputError on `field` where the text has another form, no unit, or is not more than zero.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        message = "must be a number above zero with a unit (ns, us, ms, s, min, h), such as 30ms or 1.5s"
        raise InputError(field, text, message)
    return seconds


def format_seconds(seconds: float) -> str:
    """A duration to three significant digits: `28.5 ms`; `parse_duration` reads it back."""
    return _scaled(seconds, ((1e-9, " ns"), (1e-6, " us"), (1e-3, " ms"), (1.0, " s")), zero=" s")


def format_bytes(number: float) -> str:
    """Bytes to three significant digits: `3.04 TB`."""
    units = ((1, " B"), (1e3, " kB"), (1e6, " MB"), (1e9, " GB"), (1e12, " TB"), (1e15, " PB"))
    return _scaled(number, units, zero=" B")


def format_count(number: float) -> str:
    """A count to three significant digits: `8.63B` (billion), `540B`, `43K`, `512`."""
    return _scaled(number, ((1, ""), (1e3, "K"), (1e6, "M"), (1e9, "B"), (1e12, "T")), zero="")


def _scaled(number: float, units: tuple[tuple[float, str], ...], zero: str) -> str:
    """`number` in the largest unit that is not above it, once rounded: 999.9 is 1K, not 1000."""
    rounded = float(f"{number:.3g}")
    if rounded == 0:
        return f"0{zero}"
    size, unit = units[0]
    for candidate in units:
        if abs(rounded) >= candidate[0]:
            size, unit = candidate
    scaled = float(f"{rounded / size:.3g}")
    return f"{scaled:,.0f}{unit}" if abs(scaled) >= 1000 else f"{scaled:.3g}{unit}"
