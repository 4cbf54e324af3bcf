"""Frequencies of rotary positions, slopes of ALiBi: by hand, and equal to those of transformers."""

import math
from typing import Any

import numpy as np
import pytest

from partita.program.positions import alibi_slopes, by_length, frequencies, magnitude
from partita.specs import Model

SIZES: dict[str, Any] = {
    **{"name": "m", "layers": 2, "d_model": 32, "d_ff": 64, "heads": 4, "kv_heads": 4, "head_dim": 8},
    **{"vocabulary": 10, "rotary_base": 10_000.0},
}
LLAMA3 = {
    **{"kind": "llama3", "factor": 8.0, "original_max_position": 64},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_position": 64, "beta_fast": 4.0}


def _model(**changes: Any) -> Model:
    return Model.model_validate(SIZES | changes)


def test_pairs_turn_by_powers_of_the_base():
    found = frequencies(_model())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_only_a_part_of_a_head_turns():
    np.testing.assert_allclose(frequencies(_model(rotary_fraction=0.5)), [1, 0.01], rtol=1e-6)


def test_linear_scaling_divides_every_frequency():
    model = _model(rotary_scaling={"kind": "linear", "factor": 8.0})
    np.testing.assert_allclose(frequencies(model), np.array([1, 0.1, 0.01, 0.001]) / 8, rtol=1e-6)
    np.testing.assert_array_equal(frequencies(model, local=True), frequencies(model))


def test_local_layers_with_a_base_of_their_own_are_not_scaled():
    model = _model(window=4, local_rotary_base=16.0, rotary_scaling=YARN)
    np.testing.assert_allclose(frequencies(model, local=True), [1, 0.5, 0.25, 0.125], rtol=1e-6)
    assert (magnitude(model, local=True), magnitude(model)) == (1.0, 0.1 * math.log(4) + 1)


def test_llama3_keeps_what_turns_often_and_divides_what_turns_little():
    """In 64 tokens the pairs turn 10.2, 1.02, 0.1 and 0.01 times: kept, hardly kept, divided, divided."""
    kept = np.array([1, (0.1 * 64 / (2 * math.pi) - 1) / 3, 0, 0])
    turns = np.array([1, 0.1, 0.01, 0.001])
    expected = kept * turns + (1 - kept) * turns / 8
    np.testing.assert_allclose(frequencies(_model(rotary_scaling=LLAMA3)), expected, rtol=1e-6)


def test_yarn_blends_over_the_pairs():
    """Pairs that turn 4 times and once in 64 tokens are 0.4 and 1.01: rounded outwards 0 and 2."""
    turns = np.array([1, 0.1, 0.01, 0.001])
    share = np.array([0, 0.5, 1, 1])
    np.testing.assert_allclose(
        frequencies(_model(rotary_scaling=YARN)), turns * (1 - share) + turns / 4 * share, rtol=1e-6
    )
    first, last = (math.log10(64 / (2 * math.pi * often)) for often in (4, 1))
    share = np.clip((np.arange(4) - first) / (last - first), 0, 1)
    exact = _model(rotary_scaling=YARN | {"truncate": False})
    np.testing.assert_allclose(frequencies(exact), turns * (1 - share) + turns / 4 * share, rtol=1e-6)


def test_yarn_says_what_sines_and_cosines_are_multiplied_by():
    assert magnitude(_model()) == magnitude(_model(rotary_scaling=LLAMA3)) == 1.0
    assert magnitude(_model(rotary_scaling=YARN | {"attention_factor": 1.25})) == 1.25


def test_the_base_grows_with_a_sequence_beyond_the_original_length():
    """At 96 tokens of 64, times 3: the base grows by (3 x 1.5 - 2)^(8/6)."""
    scaling = {"kind": "dynamic", "factor": 3.0, "original_max_position": 64}
    model = _model(rotary_scaling=scaling, window=4, local_rotary_base=16.0)
    found = by_length(model)
    assert found is not None
    assert by_length(model, local=True) is by_length(_model()) is None
    turns = found(np.array([[1, 64], [65, 96]]), np)
    assert (turns.dtype, turns.shape) == (np.float32, (2, 2, 4))
    for same in (turns[0, 0], turns[0, 1], frequencies(model)):
        np.testing.assert_allclose(same, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    base = 10_000 * 2.5 ** (8 / 6)
    np.testing.assert_allclose(turns[1, 1], base ** (-np.arange(4) / 4), rtol=1e-6)
    assert (turns[1, 0, 1:] < turns[0, 1, 1:]).all()
    assert magnitude(model) == 1


def test_longrope_has_one_list_up_to_the_original_length_and_another_beyond():
    scaling = {"kind": "longrope", "factor": 4.0, "original_max_position": 64}
    lists: dict[str, Any] = {"short_factors": [1, 1, 2, 4], "long_factors": [2, 5, 10, 10]}
    model = _model(rotary_scaling=scaling | lists)
    found = by_length(model)
    assert found is not None
    short, long = found(np.array([64, 65]), np)
    np.testing.assert_allclose(short, [1, 0.1, 0.005, 0.00025], rtol=1e-6)
    np.testing.assert_allclose(long, [0.5, 0.02, 0.001, 0.0001], rtol=1e-6)
    np.testing.assert_array_equal(short, frequencies(model))
    assert magnitude(model) == pytest.approx(math.sqrt(1 + 1 / 3))  # ln 4 / ln 64
    assert magnitude(_model(rotary_scaling=scaling | lists | {"attention_factor": 1.25})) == 1.25


@pytest.mark.parametrize(
    ("heads", "changes", "slopes"),
    [
        (8, {}, [2.0**-i for i in range(1, 9)]),
        (4, {}, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]),
        (6, {}, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (1, {"kv_heads": 1}, [2.0**-8]),
        (4, {"alibi_max_bias": 16.0, "alibi_scale": 0.5, "kv_heads": 2}, [2.0**-i for i in (5, 9, 13, 17)]),
    ],
)
def test_slopes_of_alibi(heads: int, changes: dict[str, Any], slopes: list[float]):
    model = _model(**{"heads": heads, "kv_heads": heads, "positions": "alibi", **changes})
    found = alibi_slopes(model)
    assert (found.dtype, found.shape) == (np.float32, (model.kv_heads, model.group))
    np.testing.assert_array_equal(found.ravel(), np.array(slopes, np.float32))


def test_a_kind_that_is_only_a_name_has_no_frequencies():
    with pytest.raises(ValueError, match="longrope is known by its name alone"):
        frequencies(_model(rotary_scaling="longrope"))


def _theirs(
    kind: str, numbers: dict[str, Any], base: float, head: int, part: float, length: int | None = None
) -> tuple[Any, float]:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=head * 2,
        num_attention_heads=2,
        head_dim=head,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": kind, "rope_theta": base, "partial_rotary_factor": part, **numbers},
    )
    found, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return found.numpy(), factor


@pytest.mark.oracle
@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize(("base", "head"), [(10_000.0, 64), (500_000.0, 128), (1_000_000.0, 96)])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("linear", {"factor": 1.0}),
        ("linear", {"factor": 8.0}),
        ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        ("llama3", {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0}),
        ("yarn", {"factor": 4.0}),
        ("yarn", {"factor": 40.0, "beta_fast": 16.0, "beta_slow": 2.0}),
        ("yarn", {"factor": 4.0, "truncate": False, "attention_factor": 0.75}),
        ("yarn", {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}),
        ("dynamic", {"factor": 4.0}),
        ("longrope", {"factor": 16.0}),
        ("longrope", {}),
    ],
)
def test_frequencies_are_those_of_transformers(
    kind: str, numbers: dict[str, Any], base: float, head: int, part: float
):
    """A model is read from the same numbers: the reading of a config.json is under test too."""
    from partita.specs import model_from_config

    if kind not in ("linear", "dynamic"):
        numbers = numbers | {"original_max_position_embeddings": 2048}
    if kind == "longrope":
        pairs = int(head * part) // 2
        lists = {"short_factor": np.linspace(1, 2, pairs), "long_factor": np.linspace(1.5, 40, pairs)}
        numbers = {**numbers, **{name: each.tolist() for name, each in lists.items()}}
    theirs, factor = _theirs(kind, numbers, base, head, part)
    rope = {"rope_type": kind, "rope_theta": base, "partial_rotary_factor": part, **numbers}
    model = model_from_config(  # of a family that turns parts of heads
        {
            **{"model_type": "gpt_neox", "hidden_size": head * 2, "intermediate_size": 8, "vocab_size": 10},
            **{"num_hidden_layers": 1, "num_attention_heads": 2, "rope_parameters": rope},
            "max_position_embeddings": 4096,
        }
    )
    np.testing.assert_allclose(frequencies(model), theirs, rtol=2e-6)
    assert magnitude(model) == pytest.approx(factor, rel=1e-12)
    found = by_length(model)
    if found is None:
        return
    for length in (1, 2048, 2049, 4096, 4097, 20_000):
        theirs, _ = _theirs(kind, numbers, base, head, part, length)
        np.testing.assert_allclose(found(np.array(length), np), theirs, rtol=5e-6)
