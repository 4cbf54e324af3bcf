"""What a model's sizes add up to: cache, layers of each kind, choices that fit, and what the engine lacks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from partita.specs import Latent, Model

TINY: dict[str, Any] = {
    "name": "tiny",
    "layers": 12,
    "d_model": 64,
    "d_ff": 256,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 16,
    "vocabulary": 100,
    "max_context": 64,
}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_position": 32}
DYNAMIC = {"kind": "dynamic", "factor": 2.0, "original_max_position": 32}
LONGROPE = {
    **{"kind": "longrope", "factor": 2.0, "original_max_position": 32},
    **{"short_factors": [1.0] * 8, "long_factors": [2.0] * 8},
}
LATENT = Latent(kv_rank=24, query_rank=32, nope_dim=12, rope_dim=4, value_dim=10)


def _model(**changes: Any) -> Model:
    return Model(**{**TINY, **changes})


def test_a_latent_cache_holds_the_compressed_vector_once_for_all_heads():
    assert _model(kv_heads=8, latent=LATENT).kv_elements_per_token == 12 * (24 + 4)
    assert _model().kv_elements_per_token == 12 * 2 * 2 * 16


@pytest.mark.parametrize(
    ("changes", "local", "reach"),
    [
        ({}, 0, 50 * 12),
        ({"window": 8}, 12, 8 * 12),
        ({"window": 8, "global_period": 6}, 10, 50 * 2 + 8 * 10),
        ({"window": 8, "global_period": 5}, 10, 50 * 2 + 8 * 10),
        ({"window": 8, "global_period": 13}, 12, 8 * 12),
        ({"window": 60, "global_period": 2}, 6, 50 * 12),
        ({"window": 8, "global_at": (0, 5, 6)}, 9, 50 * 3 + 8 * 9),
    ],
)
def test_local_layers_keep_no_more_than_their_window(changes: dict[str, Any], local: int, reach: int):
    model = _model(**changes)
    assert (model.local_layers, model.global_layers) == (local, 12 - local)
    assert model.kv_elements(50) == reach * model.kv_elements_per_token_layer


@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 200))
def test_a_window_never_needs_more_cache_and_none_below_it_less(window: int, period: int, context: int):
    model = _model(window=window, global_period=period)
    full = model.kv_elements_per_token * context
    assert 0 <= model.kv_elements(context) <= full
    assert (model.kv_elements(context) == full) == (context <= window or model.local_layers == 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 15}, "must be even for rotary"),
        ({"latent": LATENT}, r"kv_heads \(2\) equal to heads"),
        ({"kv_heads": 8, "head_dim": 20, "latent": LATENT}, r"head_dim \(20\) must be nope_dim"),
        ({"global_period": 2}, "for a model with a window"),
        ({"global_at": (1,)}, "global_at is for a model with a window"),
        ({"window": 8, "global_at": (1,), "global_period": 2}, "give one of them"),
        ({"window": 8, "global_at": (3, 1)}, "numbers from 0 to 11, each once and in order"),
        ({"window": 8, "global_at": (1, 12)}, "numbers from 0 to 11, each once and in order"),
        ({"rotary_scaling": DYNAMIC, "rotary_fraction": 0.125}, "at least 4 numbers turn"),
        ({"rotary_scaling": LONGROPE | {"long_factors": [1.0]}}, "long_factors of longrope must be 8"),
        ({"positions": "learned", "max_context": None}, "need max_context"),
        ({"block": "parallel", "post_norms": True}, "for a serial block"),
        ({"separate_norms": True}, "for a parallel block"),
        ({"rotary_fraction": 0.0}, "greater than 0"),
        ({"rotary_fraction": 0.2}, "must be an even number of at least 2, not 3"),
        ({"rotary_fraction": 0.1}, "must be an even number of at least 2, not 1"),
        ({"rotary_scaling": YARN, "rotary_base": 1.0}, "must be above 1 for yarn"),
        ({"rotary_scaling": {"kind": "linear"}}, "factor"),
        ({"rotary_scaling": {"kind": "linear", "factor": 0.5}}, "greater than or equal to 1"),
        ({"rotary_scaling": {"kind": "spline"}}, "spline"),
        ({"latent": {"kv_rank": 4, "nope_dim": 4, "rope_dim": 3, "value_dim": 4}}, "multiple of 2"),
    ],
)
def test_choices_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        _model(**changes)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kv_heads": 8, "latent": LATENT}, ("latent attention",)),
        ({"rotary_scaling": "longrope"}, ("longrope rotary scaling",)),
        (
            {"kv_heads": 8, "latent": LATENT, "rotary_scaling": "su"},
            ("latent attention", "su rotary scaling"),
        ),
    ],
)
def test_what_the_engine_lacks_is_named(changes: dict[str, Any], names: tuple[str, ...]):
    assert _model(**changes).beyond_engine == names


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 8, "global_period": 6, "local_rotary_base": 100.0, "rotary_scaling": YARN},
        {"rotary_fraction": 0.5, "rotary_pairs": "interleaved", "qk_norm": True, "post_norms": True},
        {"qkv_bias": True, "output_bias": True, "ffn_bias": True, "positions": "learned"},
        {"block": "parallel", "separate_norms": True, "norm": "layernorm", "feed_forward": "exact_gelu"},
        {"attention_softcap": 50.0, "logit_softcap": 30.0, "attention_scale": 0.1, "feed_forward": "geglu"},
        {"positions": "alibi"},
        {"rotary_scaling": DYNAMIC, "window": 8, "global_at": (0, 1, 7)},
        {"rotary_scaling": LONGROPE},
        {"embedding_scale": 8.0, "residual_scale": 0.5, "logit_scale": 0.1, "positions": "none"},
    ],
)
def test_the_engine_runs_the_rest(changes: dict[str, Any]):
    assert _model(**changes).beyond_engine == ()
