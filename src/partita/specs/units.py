"""Durations, rates, bytes and prices in, durations, bytes and counts out, in the units people write.

Bytes are decimal: 1 GB is 10^9 bytes, and 1 GiB is 2^30.
"""

from __future__ import annotations

import math
import re

from partita.errors import InputError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_DURATION = re.compile(_NUMBER + r"\s*(ns|us|µs|μs|ms|s|min|h)")
_RATE = re.compile(_NUMBER + r"\s*/\s*(s|min|h)")
_BYTES = {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_SIZE = re.compile(_NUMBER + r"\s*(B|[kKMGTP]B|[KMGTP]iB)")


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


def parse_rate(text: str, field: str = "rate") -> float:
    """Events per second of a text such as `3/s`, `200/min` or `5000/h`.

    Raises InputError on `field` where the text has another form, no unit, or is not more than zero.
    """
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) / _SECONDS[match[2]] if match else 0.0
    if not 0 < rate < math.inf:
        raise InputError(field, text, "must be a number above zero per s, min or h, such as 3/s or 200/min")
    return rate


def parse_price(text: str, field: str = "price") -> float:
    """A price of one chip for one hour, such as `2.5`, in a currency of the user's.

    Raises InputError on `field` where the text is no plain number or is not more than zero.
    """
    price = float(text) if re.fullmatch(_NUMBER, text.strip()) else 0.0
    if not 0 < price < math.inf:
        message = "must be a number above zero without a currency, the price of one chip for one hour: 2.5"
        raise InputError(field, text, message)
    return price


def parse_bytes(text: str, field: str = "bytes") -> int:
    """Bytes of a text such as `80GB` (80 x 10^9) or `2GiB` (2 x 2^30), to the nearest whole byte.

    Raises InputError on `field` where the text has another form, no unit, or is less than one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _BYTES[match[2]] if match else 0.0
    if not 0.5 < size < 1e24:
        message = (
            "must be a number above zero with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB): 80GB or 2GiB"
        )
        raise InputError(field, text, message)
    return round(size)


def format_seconds(seconds: float) -> str:
    """A duration to three significant digits: `28.5 ms`; `parse_duration` reads it back."""
    return _scaled(seconds, ((1e-9, " ns"), (1e-6, " us"), (1e-3, " ms"), (1.0, " s")), zero=" s")


def format_range(seconds: float, around: tuple[float, float]) -> str:
    """A duration and the range that it may be in: `31.2 ms (28 to 34.7 ms)`."""
    low, high = map(format_seconds, around)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{format_seconds(seconds)} ({low} to {high})"


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
