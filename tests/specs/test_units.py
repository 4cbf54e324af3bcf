"""Durations, rates, prices and bytes read; durations, bytes and counts written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.specs import (
    format_bytes,
    format_count,
    format_range,
    format_seconds,
    parse_bytes,
    parse_duration,
    parse_price,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30ms", 0.03),
        ("1.5s", 1.5),
        ("200us", 2e-4),
        ("200µs", 2e-4),
        ("7ns", 7e-9),
        (" 2 min ", 120),
        (".5h", 1800),
        ("3.s", 3),
    ],
)
def test_durations_in_every_unit(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "30", "ms", "-1s", "0ms", "1e3s", "1,5s", "30 days", "nan s", "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused_by_name(text: str):
    with pytest.raises(InputError, match=r"such as 30ms or 1\.5s") as caught:
        parse_duration(text, field="max-tpot")
    assert (caught.value.field, caught.value.value) == ("max-tpot", text)


@given(st.floats(1e-9, 9e9))
def test_a_written_duration_is_read_back_within_its_three_digits(seconds: float):
    assert parse_duration(format_seconds(seconds).replace(",", "")) == pytest.approx(seconds, rel=5.1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.85e-2, "28.5 ms"),
        (1.8235, "1.82 s"),
        (0.9999, "1 s"),
        (2e-4, "200 us"),
        (3e-9, "3 ns"),
        (85200, "85,200 s"),
    ],
)
def test_durations_written(seconds: float, text: str):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "around", "text"),
    [
        (31.2e-3, (28e-3, 34.7e-3), "31.2 ms (28 to 34.7 ms)"),
        (1.0, (0.9, 1.1), "1 s (900 ms to 1.1 s)"),
        (85.0, (80.0, 90.0), "85 s (80 to 90 s)"),
    ],
)
def test_a_range_is_in_one_unit_where_it_can_be(seconds: float, around: tuple[float, float], text: str):
    assert format_range(seconds, around) == text


def test_bytes_are_decimal():
    written = [format_bytes(number) for number in (0, 512, 999_900, 34_359_738_368, 3.04e12, 2e18)]
    assert written == ["0 B", "512 B", "1 MB", "34.4 GB", "3.04 TB", "2,000 PB"]


def test_counts():
    written = [format_count(number) for number in (0, 64, 1000, 8_632_401_920, 540_356_640_768, 3e15)]
    assert written == ["0", "64", "1K", "8.63B", "540B", "3,000T"]


@given(st.floats(1e-3, 1e15), st.floats(1e-3, 1e15))
def test_no_number_is_written_with_an_exponent(seconds: float, number: float):
    for text in (format_seconds(seconds), format_bytes(number), format_count(number)):
        assert "e" not in text


@pytest.mark.parametrize(
    ("text", "per_second"), [("3/s", 3), (" 200 / min ", 200 / 60), ("5000/h", 5000 / 3600), (".5/s", 0.5)]
)
def test_rates_are_per_second(text: str, per_second: float):
    assert parse_rate(text) == pytest.approx(per_second, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80_000_000_000),
        ("2GiB", 2_147_483_648),
        ("1.1 MB", 1_100_000),
        ("16kB", 16_000),
        ("16KB", 16_000),
        ("0.5KiB", 512),
        ("7B", 7),
        ("3 TiB", 3 * 2**40),
    ],
)
def test_bytes_decimal_and_binary(text: str, number: int):
    assert parse_bytes(text) == number
    assert type(parse_bytes(text)) is int


def test_a_price_is_a_plain_number():
    assert (parse_price("2.5"), parse_price(" 2 "), parse_price(".07")) == (2.5, 2, 0.07)


BAD = ("", "x", "-1", "nan", "inf", "1e3", "9" * 400)


@pytest.mark.parametrize(
    ("parse", "field", "example", "texts"),
    [
        (parse_rate, "rate", "3/s or 200/min", (*BAD, "3", "/s", "0/s", "3/ms", "3/day", "3 s", "-3/s")),
        (parse_price, "price", "2.5", (*BAD, "0", "$2.5", "2,5", "2.5/h")),
        (parse_bytes, "bytes", "80GB or 2GiB", (*BAD, "80", "80gb", "80Gb", "0GB", "0.1B", "9" * 20 + "PB")),
    ],
)
def test_what_is_none_is_refused_by_name(parse, field: str, example: str, texts: tuple[str, ...]):
    for text in texts:
        with pytest.raises(InputError, match=example) as caught:
            parse(text)
        assert (caught.value.field, caught.value.value) == (field, text)
        with pytest.raises(InputError) as caught:
            parse(text, "other")
        assert caught.value.field == "other"
