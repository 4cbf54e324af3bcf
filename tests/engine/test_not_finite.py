"""Numbers that stop being finite: no token is drawn from such logits, and where they began is said.

One huge weight makes them: which operation overflows first follows from the arithmetic of the program.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.engine.asking import MODEL as TIED
from tests.engine.drawing import Drawing, same
from tests.sizes import every, some

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.attention_ops import capped
from partita.engine.engine import Engine
from partita.engine.not_finite import _PLACES, _Steps, first_not_finite
from partita.engine.steps import Programs
from partita.errors import NotFiniteError
from partita.measure.launches import ints
from partita.program.ops import NO_TOKEN
from partita.program.sampling import KINDS, Kind
from partita.sharding import Mesh, parse_layout, plan_storage
from partita.specs import Formats, Model
from partita.specs.sampling import Sampling

MODEL = TIED.model_copy(update={"tied_embedding": False})
HUGE = 3e38
ONE, CUBE = Mesh("x", (1,)), Mesh("xyz", (2, 2, 2))


def engine_of(
    parameters: dict[str, np.ndarray], layout: str = "ws1d/heads", mesh: Mesh = ONE, **options: Any
) -> Engine:
    roles = parse_layout(layout, mesh.axes)
    return Engine(MemoryCheckpoint(MODEL, parameters), mesh, roles, roles, **options)


def engine_with(name: str, at: Any, value: float = HUGE) -> Engine:
    """The tiny model with one weight changed."""
    parameters = random_parameters(MODEL, seed=5)
    parameters[name][at] = value
    return engine_of(parameters)


# -- what is drawn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", some(2, ["greedy", "full", *KINDS[1:-1]]))
@pytest.mark.parametrize(
    ("split", "mesh"), some(1, [("B_y L V_xz", CUBE), ("B L V", ONE), ("B L V_xyz", CUBE)]), ids=str
)
def test_no_token_is_drawn_from_logits_that_are_not_finite(kind: Kind, split: str, mesh: Mesh):
    logits = np.random.default_rng(0).normal(0, 2, (6, 83)).astype(np.float32)
    drawing = Drawing(83, split, mesh)
    samples = same(Sampling(temperature=0.0 if kind == "greedy" else 1.0), len(logits))
    bad = logits.copy()
    bad[1, 80], bad[2, 3], bad[3, 40], bad[5] = np.nan, np.inf, -np.inf, np.nan
    tokens, wanted = (
        np.asarray(found if kind != "full" else found[0])
        for found in (drawing.draw(kind, each, samples) for each in (bad, logits))
    )
    assert tokens.tolist() == [wanted[0], NO_TOKEN, NO_TOKEN, NO_TOKEN, wanted[4], NO_TOKEN]


def test_no_token_is_drawn_where_a_temperature_makes_logits_infinite():
    logits = np.array([[1e35, 2e35, 0.0], [1.0, 2.0, 0.0]], np.float32)
    tokens = Drawing(3, "B L V", ONE).draw("sampled", logits, same(Sampling(temperature=1e-5), 2))
    assert tokens.tolist() == [NO_TOKEN, 1]


def test_a_softcap_does_not_hide_what_is_infinite():
    found = capped(jnp.array([np.inf, -np.inf, np.nan, 3e38, -1.0]))
    assert np.isnan(found[:3]).all()
    assert found[3:].tolist() == pytest.approx([1, np.tanh(-1)])


# -- where it began ---------------------------------------------------------------------------------------

LOUD = 1000.0
"""Makes the numbers that a matrix is multiplied with large enough for a product with `HUGE` to overflow."""
CASES = [
    # of all hidden units: a gate may have closed any one of them
    ("layers.1.ffn_out", (..., 4), "layers.1.ffn_norm", "in layer 1, the feed-forward's down projection"),
    ("layers.0.q", (3, 0, 0, 0), "layers.0.norm", "in layer 0, the projection of queries"),
    # finite themselves; their squares are not
    ("embed", (2, 4), None, "in layer 0, the norm before attention (sum of squares)"),
    ("layers.1.ffn_out", (7, 4), None, "in the final norm (sum of squares)"),
    ("layers.1.kv", (3, 1, 0, 0), "layers.1.norm", "in layer 1, the projection of keys and values"),
    ("layers.0.o", (0, 0, 0, 4), "layers.0.norm", "in layer 0, the attention's output projection"),
    ("layers.0.ffn_in", (3, 0, 0), "layers.0.ffn_norm", "in layer 0, the feed-forward's up projection"),
    ("unembed", (7, 3), "final_norm", "in the logits"),
]


@pytest.mark.parametrize(("name", "at", "loud", "where"), some(1, CASES))
def test_the_operation_that_overflows_is_named(name: str, at: Any, loud: str | None, where: str):
    parameters = random_parameters(MODEL, seed=5)
    parameters[name][at] = HUGE
    if loud is not None:
        parameters[loud][:] = LOUD
    with pytest.raises(NotFiniteError) as error:
        engine_of(parameters).complete([[1, 2, 3]], Sampling(max_tokens=3))
    largest = f"the largest weight up to there is 3e+38, in {name}"
    assert str(error.value) == f"model: asked: the activations became infinite {where}; {largest}"


@pytest.mark.full
def test_a_score_that_is_lower_than_a_masked_one_is_not_left_out():
    """All of them finite; the first token sees itself alone, with one head's score far below zero."""
    parameters = random_parameters(MODEL, seed=5)
    for name in ("layers.0.q", "layers.0.kv"):
        parameters[name] *= 1e17
    with pytest.raises(NotFiniteError, match=r"in layer 0, attention \(softmax\)"):
        engine_of(parameters).complete([[1]], Sampling(max_tokens=1))


def test_one_bad_prompt_of_a_batch_is_told_and_the_engine_goes_on():
    engine = engine_with("embed", (0, 4))
    asked = [Sampling(max_tokens=3, temperature=0.5, seed=1, logprobs=2)] * 2
    with pytest.raises(NotFiniteError, match="prompt 2 of 2: the activations became infinite in layer 0"):
        engine.complete([[1, 2], [4, 0, 3]], asked)
    with pytest.raises(NotFiniteError, match="prompt 2 of 2"):
        engine.logits([[1, 2], [4, 0, 3]])
    assert len(engine.generate([[1, 2]], 3)[0]) == 3  # padded with no token but its own
    # what is written first is read again too: the prompt alone does not show it
    pieces, found = engine.stream([1, 2], max_tokens=3, logit_bias={0: 100.0}), []
    with pytest.raises(NotFiniteError, match="became infinite in layer 0, the norm before attention"):
        found.extend(pieces)
    assert found == ["0 "]


@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "formats"),
    [
        ("ws2d/context", Formats(weights="int8", activations="bf16", kv="int8", reduce="bf16")),
        ("wg-xyz/batch", Formats.all_in("f32")),
        ("ws1d/heads", Formats.all_in("bf16")),
    ],
    ids=str,
)
def test_every_layout_and_format_is_looked_through(layout: str, formats: Formats):
    """A prompt of two chunks, of which the second's last token alone overflows."""
    parameters = random_parameters(MODEL, seed=5)
    parameters["embed"][63, 4] = HUGE
    engine = engine_of(parameters, layout, CUBE, formats=formats)
    ids = np.random.default_rng(0).integers(63, size=150).tolist()
    given = engine.programs, engine.parameters, engine.roles["prefill"]
    assert first_not_finite(*given, ids, 150) is None
    found = first_not_finite(*given, [*ids, 63], 150)
    assert found is not None
    assert found.startswith("in layer 0, the norm before attention (sum of squares); the largest")
    assert found.endswith("3e+38, in embed")


@pytest.mark.parametrize("upto", [20, 8])
def test_rotary_positions_know_the_length_of_the_prompt(upto: int):
    """Of LongRoPE: a prompt that is longer than the trained length has its long factors from its first token
    on; the short ones, which would overflow, are not looked at."""
    scaling = {
        **{"kind": "longrope", "factor": 2.0, "original_max_position": 10},
        **{"short_factors": (1e-38, 1e-38), "long_factors": (1.0, 1.0)},
    }
    model = Model.model_validate(MODEL.model_dump(exclude_none=True) | {"rotary_scaling": scaling})
    roles = parse_layout("ws1d/heads", "x")
    engine = Engine(MemoryCheckpoint(model, random_parameters(model, seed=5)), ONE, roles, roles)
    given = engine.programs, engine.parameters, roles, [1] * upto
    assert first_not_finite(*given, 20) is None
    found = first_not_finite(*given, 8)
    assert found is not None
    assert "rotary positions" in found


KINDS_OF_MODELS: list[dict[str, Any]] = [
    {},
    {"block": "parallel", "norm": "layernorm", "feed_forward": "gelu", "qkv_bias": True, "ffn_bias": True},
    {
        **{"post_norms": True, "qk_norm": True, "attention_softcap": 5.0, "logit_softcap": 3.0, "window": 4},
        **{"global_period": 2, "embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 0.5},
    },
    {"positions": "learned", "max_context": 64, "feed_forward": "gelu"},
]


@pytest.mark.parametrize("layout", some(1, ["ws2d/context", "ws1d/heads"]))
@pytest.mark.parametrize("fields", every(2, KINDS_OF_MODELS), ids=str)
def test_every_operation_of_the_program_is_looked_at_and_has_words(fields: dict[str, Any], layout: str):
    """Traced alone: nothing is compiled."""
    model = Model.model_validate(MODEL.model_dump(exclude_none=True) | fields)
    roles = parse_layout(layout, CUBE.axes)
    programs = Programs(model, CUBE, plan_storage(model, CUBE, roles, roles), Formats.all_in("f32"))
    steps, known = _Steps(programs, roles, 8, 1), programs.parameters()
    outside = {name: each for name, each in known.items() if not name.startswith("layers.")}
    block = {name: each for name, each in known.items() if name.startswith("layers.0.")}
    chunk = [ints(*each.shape) for each in steps.chunk([1], 0)]
    cache = programs.cache(steps.layout, steps.rows, steps.width, steps.width)[0]
    found: list[list[str]] = []

    def traced(name: str, weights: dict[str, Any], *given: Any) -> Any:
        step, operations = steps.part(name, weights)
        result, _ = jax.eval_shape(step, weights, *given)
        found.append(operations)
        return result

    x = traced("embed", outside, *chunk)
    traced("global", block, x, cache, *chunk[1:])
    traced("head", outside, x, chunk[2])
    places = {each.split(" (")[0] for part in found for each in part}
    assert places <= set(_PLACES.values())
    wanted = set(_PLACES.values()) - {"the norm before the feed-forward", "the last token"}
    assert places >= wanted
