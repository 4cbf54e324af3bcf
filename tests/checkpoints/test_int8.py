"""Symmetric int8 by output channel: errors within half a scale, no scale shared across fused parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import stored_forms as forms
from tests.checkpoints.in_memory import in_int8

from partita.checkpoints.int8 import channel_index, dequantise, quantise
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.errors import InputError
from partita.specs.parameters import Parameter, all_parameters

MODEL = forms.QWEN2.model_copy(update={"tied_embedding": False})
SHAPES = {
    "embed": (17,),
    "unembed": (17,),
    "q": (2, 3, 4),
    "kv": (2, 2, 4),
    "o": (12,),
    "ffn_in": (2, 14),
    "ffn_out": (12,),
}


EMBED = all_parameters(MODEL)["embed"]


def matrix(kind: str) -> tuple[Parameter, np.ndarray]:
    name = kind if kind in ("embed", "unembed") else f"layers.1.{kind}"
    return all_parameters(MODEL)[name], random_parameters(MODEL, seed=1)[name]


@pytest.mark.parametrize("kind", SHAPES)
def test_every_value_is_within_half_a_scale(kind: str):
    parameter, values = matrix(kind)
    whole, scale = quantise(parameter, values)
    assert (whole.dtype, whole.shape, scale.dtype, scale.shape) == (
        np.int8,
        values.shape,
        np.float32,
        SHAPES[kind],
    )
    assert abs(whole).max() == 127
    largest_error = abs(dequantise(parameter, whole, scale) - values).max()
    assert 0 < largest_error <= scale.max() / 2 * 1.001


@pytest.mark.parametrize("kind", ["kv", "ffn_in", "q"])
def test_parts_of_very_different_scale_keep_their_precision(kind: str):
    parameter, values = matrix(kind)
    axis = 2 if kind == "q" else 1
    small = (slice(None),) * axis + (0,)
    values[small] /= 100
    back = dequantise(parameter, *quantise(parameter, values))
    for part in range(values.shape[axis]):
        at = (slice(None),) * axis + (part,)
        assert np.linalg.norm(back[at] - values[at]) < 0.01 * np.linalg.norm(values[at])


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40])
def test_a_channel_of_next_to_nothing_is_never_nan(tiny: float):
    values = np.full((3, 4), np.float32(tiny))
    values[1] = 2
    whole, scale = quantise(EMBED, values)
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    np.testing.assert_allclose(dequantise(EMBED, whole, scale), values, atol=1e-38, rtol=1e-6)


@given(
    st.lists(
        st.floats(-(2.0**126), 2.0**126, width=32, allow_subnormal=False),
        min_size=1,
        max_size=8,
    )
)
def test_any_finite_row_comes_back_within_half_a_scale(row: list[float]):
    values = np.array([row], np.float32)
    whole, scale = quantise(EMBED, values)
    assert abs(dequantise(EMBED, whole, scale) - values).max() <= max(float(scale[0]) * 0.5001, 1e-37)


def test_the_scales_of_a_slice_are_those_of_its_channels():
    parameter, values = matrix("kv")
    whole, scale = quantise(parameter, values)
    index = (slice(2, 9), slice(1, 2), slice(0, 2), slice(1, 3))
    assert channel_index(parameter, index) == index[1:]
    np.testing.assert_array_equal(
        dequantise(parameter, whole[index], scale[channel_index(parameter, index)]),
        dequantise(parameter, whole, scale)[index],
    )


def test_a_checkpoint_in_memory_in_int8():
    checkpoint = MemoryCheckpoint(MODEL, random_parameters(MODEL, seed=1))
    assert checkpoint.quantised == frozenset()
    held = in_int8(checkpoint)
    assert held.quantised == {name for name in all_parameters(MODEL) if name.rpartition(".")[2] in SHAPES}
    for name, parameter in all_parameters(MODEL).items():
        exact = checkpoint.read(name)
        if name in held.quantised:
            whole, scale = held.read_int8(name, ()), held.read_scale(name, ())
            np.testing.assert_array_equal(held.read(name), dequantise(parameter, whole, scale))
            assert np.linalg.norm(held.read(name) - exact) < 0.01 * np.linalg.norm(exact)
        else:
            np.testing.assert_array_equal(held.read(name), exact)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_name(wrong: float):
    parameter, values = matrix("q")
    values[3, 1, 2, 0] = wrong
    with pytest.raises(InputError, match=r"model: layers\.1\.q: holds numbers that are not finite"):
        quantise(parameter, values)
