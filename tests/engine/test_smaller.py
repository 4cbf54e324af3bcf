"""What is offered where something does not fit: the mildest change that the caller has a word for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from partita.engine.memory import Asked
from partita.engine.smaller import PYTHON, Words, smallest_change
from partita.specs import Formats
from partita.specs.sampling import Sampling

F32 = Formats.all_in("f32")
OPTIONS: Words = {name: f"--{name} {{}}" for name in ("dtype", "weights", "kv", "chunk", "n")}
BITS: Mapping[str, int] = {"f32": 32, "bf16": 16, "int8": 8}


def offered(words: Words, room: int, placed: bool = False) -> str | None:
    """For three samples of ten prompts of 64 tokens: each sample takes one, each token read at once two, and
    a number of the weights and of the cache the bits that it has."""
    asked = Asked((64,) * 10, (Sampling(n=3, max_tokens=1, temperature=1),) * 10)

    def fits(formats: Formats, asked: Any, chunk: int | None) -> bool:
        read = min(chunk or 64, 64)
        return asked.samples + 2 * read + BITS[formats.weights] + BITS[formats.kv] <= room

    return smallest_change(asked, F32, None, words, fits, placed)


@pytest.mark.parametrize(
    ("words", "room", "said"),
    [
        (OPTIONS, 30 + 64 + 64, "--chunk 32"),
        (PYTHON, 30 + 64 + 64, "chunk=32"),
        ({"dtype": "--dtype {}"}, 30 + 128 + 32, "--dtype bf16"),
        ({"kv": "kv={}", "weights": "weights={}"}, 30 + 128 + 40, "kv=int8"),
        ({"kv": "kv={}", "weights": "weights={}"}, 30 + 128 + 16, "weights=int8 and kv=int8"),
        ({"n": "--n {}"}, 20 + 128 + 64, "--n 2"),
        ({"n": "--n {}", "kv": "--kv {}"}, 20 + 128 + 40, "--kv int8 and --n 2"),
        ({"n": "n={}", "batch": "{} at a time"}, 20 + 128 + 64, "n=2 or 6 at a time"),
        ({"n": "--n {}"}, 9 + 128 + 64, None),
        ({"force": "--force"}, 20 + 128 + 64, None),
        ({}, 29 + 128 + 64, None),
    ],
    ids=str,
)
def test_only_what_the_caller_has_a_word_for_is_offered(words: Words, room: int, said: str | None):
    assert offered(words, room) == said


def test_what_is_placed_keeps_its_formats_and_its_chunk():
    assert offered(OPTIONS, 20 + 128 + 64, placed=True) == "--n 2"
