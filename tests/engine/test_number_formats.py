"""Which number formats a run has: said, planned, or what its devices are fast in."""

from __future__ import annotations

import pytest

from partita.engine.number_formats import number_formats
from partita.errors import InputError
from partita.specs import Formats

PLANNED = Formats(weights="int8", activations="bf16", kv="bf16", reduce="bf16")


@pytest.mark.parametrize(
    ("asked", "platform", "planned", "expected"),
    [
        (("auto", None, None), "cpu", None, ("f32", "f32", "f32", "f32")),
        (("auto", None, None), "tpu", None, ("bf16", "bf16", "bf16", "f32")),
        (("bf16", "int8", None), "cpu", None, ("int8", "bf16", "bf16", "f32")),
        (("f32", "int8", "int8"), "gpu", None, ("int8", "f32", "int8", "f32")),
        (("auto", None, None), "tpu", PLANNED, ("int8", "bf16", "bf16", "bf16")),
        (("auto", None, None), "gpu", Formats.all_in("f32"), ("f32", "f32", "f32", "f32")),
        (("auto", None, "int8"), "cpu", PLANNED, ("int8", "f32", "int8", "f32")),
    ],
)
def test_formats(
    asked: tuple[str, str | None, str | None], platform: str, planned: Formats | None, expected: tuple
):
    found = number_formats(*asked, platform, planned)
    assert (found.weights, found.activations, found.kv, found.reduce) == expected


@pytest.mark.parametrize(
    ("asked", "field"),
    [(("f16", None, None), "dtype"), (("f32", "int4", None), "weights"), (("f32", None, "bf16"), "kv")],
)
def test_others_are_refused_by_name(asked: tuple[str, str | None, str | None], field: str):
    with pytest.raises(InputError, match="accepted") as error:
        number_formats(*asked, "cpu")
    assert error.value.field == field
