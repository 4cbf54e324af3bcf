"""The NumPy reference: against transformers on a real model, and against its own equations."""

from typing import Any

import numpy as np
import pytest
from tests import reference

from partita.checkpoints.protocol import StoredCheckpoint, random_parameters
from partita.specs.model import Model
from partita.specs.parameters import all_parameters

MODEL = Model(name="small", layers=2, d_model=16, d_ff=24, heads=4, kv_heads=2, head_dim=6, vocabulary=20)
TURNS = [1, 100 ** (-1 / 3), 100 ** (-2 / 3)]
TOKENS = [3, 1, 4, 1, 5, 9, 2]
FORMS = [
    MODEL,
    MODEL.model_copy(update={"block": "parallel", "norm": "layernorm", "feed_forward": "gelu"}),
    MODEL.model_copy(update={"norm_parameters": False, "positions": "none", "tied_embedding": False}),
    Model.model_validate(
        {
            **MODEL.model_dump(),
            **dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "qk_norm", "post_norms"), True),
            **{"window": 3, "global_period": 2, "local_rotary_base": 50.0, "feed_forward": "geglu"},
            **{"attention_softcap": 2.0, "logit_softcap": 3.0, "attention_scale": 0.5, "logit_scale": 2.0},
            **{"embedding_scale": 4.0, "residual_scale": 0.5},
            "rotary_scaling": {"kind": "yarn", "factor": 4.0, "original_max_position": 16},
        }
    ),
    Model.model_validate(
        {
            **MODEL.model_dump(),
            **dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "qk_norm", "separate_norms"), True),
            **{"block": "parallel", "norm": "layernorm", "feed_forward": "exact_gelu", "window": 3},
            **{"rotary_fraction": 2 / 3, "rotary_pairs": "interleaved"},
        }
    ),
    MODEL.model_copy(update={"positions": "learned", "max_context": len(TOKENS), "feed_forward": "gelu"}),
]


def test_smollm2_gives_the_logits_and_tokens_of_transformers(
    smollm2: StoredCheckpoint, oracle: dict[str, Any]
):
    parameters = {name: smollm2.read(name) for name in all_parameters(smollm2.model)}
    for entry in oracle["prompts"]:
        prompt, generated = entry["prompt_ids"], entry["generated_ids"]
        logits = reference.logits(smollm2.model, parameters, prompt + generated[:-1])[len(prompt) - 1 :]
        assert logits.argmax(axis=-1).tolist() == generated
        assert np.argsort(-logits[0])[:8].tolist() == entry["top_ids"]
        np.testing.assert_allclose(logits[0, entry["top_ids"]], entry["top_logits"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("model", FORMS)
def test_later_tokens_change_nothing_before_them(model: Model):
    parameters = random_parameters(model, seed=5)
    whole = reference.logits(model, parameters, TOKENS)
    assert whole.shape == (len(TOKENS), model.vocabulary)
    np.testing.assert_allclose(reference.logits(model, parameters, TOKENS[:4]), whole[:4], atol=1e-12)
    cache = reference.kv(model, parameters, TOKENS)
    assert cache.shape == (model.layers, len(TOKENS), 2, model.kv_heads, model.head_dim)
    np.testing.assert_allclose(reference.kv(model, parameters, TOKENS[:4]), cache[:, :4], atol=1e-12)


@pytest.mark.parametrize("model", FORMS)
def test_every_parameter_matters(model: Model):
    parameters = random_parameters(model, seed=5)
    before = reference.logits(model, parameters, TOKENS)[-1]
    for name, value in parameters.items():
        for i in range(len(value) if name.endswith("norm") else 1):
            changed = value.copy()
            changed[i if name.endswith("norm") else ...] *= 1.5
            after = reference.logits(model, parameters | {name: changed}, TOKENS)[-1]
            assert abs(after - before).max() > 1e-4, (name, i)


def test_grouped_heads_equal_heads_with_their_keys_repeated():
    grouped = random_parameters(MODEL, seed=6)
    full = MODEL.model_copy(update={"kv_heads": 4})
    repeated = dict(grouped)
    for i in range(MODEL.layers):
        at = f"layers.{i}."
        repeated[at + "q"] = grouped[at + "q"].reshape(16, 4, 1, 6)
        repeated[at + "kv"] = grouped[at + "kv"].repeat(2, axis=2)
        repeated[at + "o"] = grouped[at + "o"].reshape(4, 1, 6, 16)
    np.testing.assert_allclose(
        reference.logits(full, repeated, TOKENS), reference.logits(MODEL, grouped, TOKENS), atol=1e-12
    )


def test_rotary_scores_depend_on_distance_alone():
    query, key = np.random.default_rng(0).standard_normal((2, 6))
    queries, keys = (reference.rotate(np.tile(vector, (12, 1)), TURNS) for vector in (query, key))
    scores = queries @ keys.T
    for distance in range(4):
        along = np.diagonal(scores, offset=-distance)
        np.testing.assert_allclose(along, along[0], atol=1e-12)
    assert scores[0, 0] == pytest.approx(query @ key)
    assert abs(scores[3, 0] - scores[0, 0]) > 0.01


def test_rotary_turns_the_first_pair_by_the_position():
    x = np.zeros((3, 6))
    x[:, 0] = 1
    expected = np.zeros((3, 6))
    expected[:, 0], expected[:, 3] = np.cos([0, 1, 2]), np.sin([0, 1, 2])
    np.testing.assert_allclose(reference.rotate(x, TURNS), expected, atol=1e-15)


def test_norms_by_hand():
    x = np.array([[1.0, 3.0]])
    rms = MODEL.model_copy(update={"norm_epsilon": 4.0})
    np.testing.assert_allclose(reference.normalise(rms, x, np.array([[3.0, 6.0]])), [[1.0, 6.0]])
    layer = rms.model_copy(update={"norm": "layernorm", "norm_epsilon": 3.0})
    vectors = np.array([[2.0, 4.0], [10.0, 20.0]])
    np.testing.assert_allclose(reference.normalise(layer, x, vectors), [[9.0, 22.0]])


def test_greedy_takes_the_likeliest_token_each_time():
    parameters = random_parameters(MODEL, seed=7)
    generated = reference.greedy(MODEL, parameters, TOKENS, 5)
    logits = reference.logits(MODEL, parameters, TOKENS + generated)
    assert generated == logits[len(TOKENS) - 1 : -1].argmax(axis=-1).tolist()


def _changed(**changes: Any) -> np.ndarray:
    parameters = random_parameters(MODEL, seed=8)
    return reference.logits(Model.model_validate(MODEL.model_dump() | changes), parameters, TOKENS)


def _scaled(kind: str, factor: float) -> np.ndarray:
    """Logits of the plain model, its parameters of one kind times a factor."""
    parameters = random_parameters(MODEL, seed=8)
    scaled = {
        name: value * np.float64(factor) if name.rpartition(".")[2] == kind else value
        for name, value in parameters.items()
    }
    return reference.logits(MODEL, scaled, TOKENS)


def test_scales_are_those_of_parameters():
    np.testing.assert_allclose(_changed(logit_scale=3.0), 3 * _changed(), atol=1e-12)
    np.testing.assert_allclose(_changed(attention_scale=0.7), _scaled("q", 0.7 * 6**0.5), atol=1e-12)
    both = _changed(embedding_scale=3.0, logit_scale=3.0)  # a tied table is both
    np.testing.assert_allclose(both, _scaled("embed", 3), atol=1e-12)
    halves = _changed(embedding_scale=4.0, residual_scale=4.0, norm_epsilon=16e-6)
    np.testing.assert_allclose(halves, _changed(), atol=1e-12)  # of a residual 4 times as large


def test_softcaps_bend_what_they_are_for():
    np.testing.assert_allclose(_changed(logit_softcap=0.5), np.tanh(_changed() / 0.5) * 0.5, atol=1e-12)
    np.testing.assert_allclose(_changed(attention_softcap=1e6), _changed(), atol=1e-9)
    uniform = _changed(attention_softcap=1e-9)
    np.testing.assert_allclose(uniform, _scaled("q", 0), atol=1e-7)  # every score is the same


def test_a_window_is_its_last_tokens_and_the_token_itself():
    parameters = random_parameters(MODEL, seed=8)
    model = MODEL.model_copy(update={"window": 3, "layers": 1})
    last = reference.logits(model, parameters, TOKENS)[-1]
    for i, sees in [(3, False), (4, True)]:  # of 7 tokens the last three
        changed = list(TOKENS)
        changed[i] = 17
        assert (abs(reference.logits(model, parameters, changed)[-1] - last).max() > 1e-4) == sees
    np.testing.assert_allclose(_changed(window=7), _changed(), atol=1e-12)
    np.testing.assert_allclose(_changed(window=2, global_period=1), _changed(), atol=1e-12)
    layers = [reference.is_local(model.model_copy(update={"global_period": 3}), i) for i in range(6)]
    assert layers == [True, True, False, True, True, False]


def test_neighbours_turn_as_halves_do_after_sorting():
    x = np.random.default_rng(0).standard_normal((5, 2, 6))
    order = [0, 2, 4, 1, 3, 5]
    neighbours = reference.rotate(x, TURNS, neighbours=True)
    np.testing.assert_allclose(neighbours[..., order], reference.rotate(x[..., order], TURNS), atol=1e-15)


def test_what_no_pair_reaches_stays():
    x = np.random.default_rng(0).standard_normal((5, 6))
    turned = reference.rotate(x, TURNS[:2], size=1.5)
    np.testing.assert_array_equal(turned[:, 4:], x[:, 4:])
    np.testing.assert_allclose(turned[0, :4], 1.5 * x[0, :4])


def test_activations_by_hand():
    layer = {"ffn_in": np.eye(2)[:, :, None].repeat(2, axis=2), "ffn_out": np.eye(2)}
    y = np.array([[1.0, 3.0]])  # gate 1, up 3
    values = {"swiglu": 3 / (1 + np.exp(-1)), "geglu": 3 * 0.841192, "gelu": 0.841192, "exact_gelu": 0.841345}
    for kind, value in values.items():
        model = MODEL.model_copy(update={"feed_forward": kind})
        found = reference.feed_forward(model, y, layer)
        np.testing.assert_allclose(found, [[value, value]], atol=1e-6)
