"""Random values for every parameter of a model, and checkpoints in memory."""

import itertools

import numpy as np
import pytest

from partita.checkpoints.protocol import Checkpoint, MemoryCheckpoint, random_parameters
from partita.specs.model import Model
from partita.specs.parameters import all_parameters

SMALL = Model(
    name="small",
    layers=2,
    d_model=48,
    d_ff=80,
    heads=6,
    kv_heads=3,
    head_dim=8,
    vocabulary=40,
    norm="layernorm",
)
FORMS = [
    SMALL.model_copy(
        update={
            "block": block,
            "norm": norm,
            "norm_parameters": held,
            "feed_forward": ffn,
            "tied_embedding": tied,
        }
    )
    for block, norm, held, ffn, tied in itertools.product(
        ["serial", "parallel"], ["rmsnorm", "layernorm"], [True, False], ["swiglu", "gelu"], [True, False]
    )
]


@pytest.mark.parametrize("model", FORMS[::5])
def test_random_parameters_have_the_listed_shapes(model: Model):
    parameters = random_parameters(model, seed=1)
    shapes = {name: row.shape for name, row in all_parameters(model).items()}
    assert {name: value.shape for name, value in parameters.items()} == shapes
    assert {value.dtype for value in parameters.values()} == {np.dtype(np.float32)}


def test_random_parameters_follow_their_seed():
    first, again, other = (random_parameters(SMALL, seed)["layers.1.q"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_scales_keep_activations_near_one():
    parameters = random_parameters(SMALL, seed=1)
    for name, fan_in in [("q", 48), ("kv", 48), ("o", 48), ("ffn_in", 48), ("ffn_out", 80)]:
        assert parameters[f"layers.0.{name}"].std() == pytest.approx(fan_in**-0.5, rel=0.1)
    scale, bias = parameters["layers.0.norm"]
    assert scale.mean() == pytest.approx(1, abs=0.1)
    assert (scale != 1).all()
    assert bias.mean() == pytest.approx(0, abs=0.1)
    assert (bias != 0).all()


def test_a_memory_checkpoint_is_a_checkpoint():
    checkpoint: Checkpoint = MemoryCheckpoint(SMALL, random_parameters(SMALL, seed=0))
    assert checkpoint.read("embed").shape == (40, 48)
    assert checkpoint.tokenizer is None
