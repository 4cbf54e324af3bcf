"""Every feature of a model, and every two of them together, under the main layouts: tokens and logits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from tests import reference
from tests.engine.bench import OWN_SHAPES, TOLERANCE
from tests.sizes import full

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.engine import Engine
from partita.sharding import Mesh, parse_layout
from partita.specs.model import Model

CUBE = Mesh.of((2, 2, 2))
WINDOW, STEPS = 5, 32
LENGTHS = (3, 17, 1)
"""Tokens of the prompts: fewer than a window, more than three, and one."""
SIZES = {"layers": 2, "d_model": 24, "d_ff": 20, "heads": 6, "head_dim": 8, "vocabulary": 53}
YARN = {
    **{"kind": "yarn", "factor": 4.0, "original_max_position": 16, "beta_fast": 4.0},
    "attention_factor": 0.7,
}
LLAMA3 = {
    **{"kind": "llama3", "factor": 4.0, "original_max_position": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
Row = dict[str, int]
"""The chosen value of each choice, by its number."""

# Of each choice the values, the first the plain one. A value is fields of `Model`, or layouts of both phases.
CHOICES: dict[str, list[Any]] = {
    "layouts": [
        ("ws1d/heads", "ws1d/heads"),
        ("ws2d/batch", "ws2d/batch"),
        ("wg-xyz/batch", "ws2d/heads"),
        ("wg-xyz/heads", "ws1d/batch"),
    ],
    "feed_forward": [{"feed_forward": kind} for kind in ("swiglu", "geglu", "exact_gelu")],
    "scaling": [
        {},
        *({"rotary_scaling": kind} for kind in ({"kind": "linear", "factor": 4.0}, LLAMA3, YARN)),
    ],
    "window": [
        {},
        {"window": WINDOW},
        {"window": WINDOW, "global_at": (0,)},
        {"window": WINDOW, "global_period": 2, "local_rotary_base": 50.0},
    ],
    "norm": [{}, {"norm": "layernorm"}, {"norm_parameters": False}],
    "kv_heads": [{"kv_heads": heads} for heads in (6, 3, 1)],
    "positions": [
        {},
        {"positions": "learned", "max_context": 64},
        {"positions": "alibi", "alibi_max_bias": 4.0, "alibi_scale": 0.5},
    ],
    "turned": [{}, {"rotary_fraction": 0.5}, {"rotary_pairs": "interleaved"}],
    "block": [{}, {"block": "parallel"}],
    "more_norms": [{}, {"post_norms": True}],  # of a parallel block: separate_norms
    "tied": [{"tied_embedding": True}, {"tied_embedding": False}],
    **{
        name: [{}, {name: value}]
        for name, value in {
            **dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "qk_norm"), True),
            **{"attention_softcap": 1.0, "logit_softcap": 2.0, "attention_scale": 0.7, "logit_scale": 1.5},
            **{"embedding_scale": 3.0, "residual_scale": 0.5},
        }.items()
    },
}
_NOT_ROTARY = {("positions", 1), ("positions", 2)}
_ROTARY_ONLY = {("turned", 1), ("turned", 2), ("window", 3), *(("scaling", i) for i in range(1, 4))}


def _possible(row: Row) -> bool:
    """Without rotary positions nothing turns, and without parameters two norms of one residual are one."""
    if _NOT_ROTARY & row.items() and _ROTARY_ONLY & row.items():
        return False
    return not {("norm", 2), ("block", 1), ("more_norms", 1)} <= row.items()


def _pairs(row: Row) -> set[tuple]:
    return set(itertools.combinations(sorted(row.items()), 2))


def _all_pairs() -> set[tuple]:
    values = sorted((name, i) for name, kinds in CHOICES.items() for i in range(len(kinds)))
    pairs = itertools.combinations(values, 2)
    return {(a, b) for a, b in pairs if a[0] != b[0] and _possible(dict((a, b)))}


@cache
def rows() -> list[Row]:
    """Few rows that hold every possible pair of values, each the best of some grown round a missing pair."""
    draw, missing, found = random.Random(0), _all_pairs(), []
    while missing:
        grown = [_grown(draw, missing) for _ in range(30)]
        found.append(max(grown, key=lambda row: len(_pairs(row) & missing)))
        missing -= _pairs(found[-1])
    return found


def _grown(draw: random.Random, missing: set[tuple]) -> Row:
    """A row round one of the missing pairs, choice by choice the value that makes most of them."""
    row: Row = dict(draw.choice(sorted(missing)))
    for name in draw.sample(sorted(CHOICES), len(CHOICES)):
        if name not in row:
            values = [i for i in range(len(CHOICES[name])) if _possible(row | {name: i})]
            gains = [(len(_pairs(row | {name: i}) & missing), draw.random(), i) for i in values]
            row[name] = max(gains)[-1]
    return row


def model_of(row: Row) -> Model:
    fields: dict[str, Any] = {"name": "-".join(str(i) for i in row.values()), **SIZES}
    for name, i in row.items():
        if name != "layouts":
            fields |= CHOICES[name][i]
    if fields.get("block") == "parallel":
        fields["separate_norms"] = fields.pop("post_norms", False)
    return Model.model_validate(fields)


def prompts_of(model: Model) -> list[list[int]]:
    draw = np.random.default_rng(len(model.name))
    return [draw.integers(model.vocabulary, size=n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module", autouse=True)
def _quick_to_compile() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_every_possible_pair_is_covered():
    assert set().union(*(_pairs(row) for row in rows())) >= _all_pairs()
    assert all(_possible(row) for row in rows())


@pytest.mark.parametrize("number", range(len(rows())))
def test_logits_and_tokens_of_every_model(number: int):
    row = rows()[number]
    model, prompts = model_of(row), prompts_of(model_of(row))
    parameters = random_parameters(model, seed=number)
    roles = [parse_layout(layout, CUBE.axes) for layout in CHOICES["layouts"][row["layouts"]]]
    engine = Engine(MemoryCheckpoint(model, parameters), CUBE, *roles, options=OWN_SHAPES)
    found = engine.generate(prompts, STEPS)
    texts = [prompt + tokens for prompt, tokens in zip(prompts, found, strict=True)]
    expected = [reference.logits(model, parameters, text) for text in texts]
    for logits, theirs, prompt, tokens in zip(engine.logits(texts), expected, prompts, found, strict=True):
        assert abs(logits - theirs).max() < TOLERANCE
        steps = theirs[len(prompt) - 1 : -1]  # those that each token was chosen by
        assert len(tokens) == STEPS
        chosen = steps[np.arange(STEPS), tokens]
        assert (steps.max(axis=-1) - chosen).max() < TOLERANCE


BY_LENGTH = {
    "dynamic": {"kind": "dynamic", "factor": 3.0, "original_max_position": 10},
    "longrope": {
        **{"kind": "longrope", "factor": 4.0, "original_max_position": 25},
        **{"short_factors": (1.0, 1.1, 1.3, 1.7), "long_factors": (1.5, 2.5, 4.5, 8.0)},
    },
}
"""Original lengths that one prompt is beyond at once, and that the others are beyond before their end; or all
at their end alone."""


@pytest.mark.parametrize(
    ("kind", "layouts", "chunk"),
    [
        ("dynamic", ("wg-xyz/heads", "ws2d/batch"), 8),
        ("longrope", ("ws2d/batch", "ws1d/heads"), None),
        full(("longrope", ("ws1d/heads", "ws2d/batch"), 8)),
        full(("dynamic", ("ws2d/batch", "wg-xyz/batch"), None)),
    ],
)
def test_tokens_turn_as_their_sequence_has_it_when_they_are_read(
    kind: str, layouts: tuple[str, str], chunk: int | None
):
    """A prompt turns by its whole length, whatever the chunks and the prompts beside it; what follows by the
    length up to itself, and what was cached before stays as it is: as `generate` in transformers does it."""
    others = {"window": WINDOW, "global_period": 2, "qk_norm": True, "kv_heads": 3}
    model = Model.model_validate({"name": kind, **SIZES, **others, "rotary_scaling": BY_LENGTH[kind]})
    parameters, prompts = random_parameters(model, seed=5), prompts_of(model)
    roles = [parse_layout(layout, CUBE.axes) for layout in layouts]
    engine = Engine(
        MemoryCheckpoint(model, parameters), CUBE, *roles, options=replace(OWN_SHAPES, chunk=chunk)
    )
    found = engine.generate(prompts, STEPS)
    for prompt, tokens, logits in zip(prompts, found, engine.logits(prompts), strict=True):
        text = prompt + tokens
        assert abs(logits - reference.logits(model, parameters, prompt)).max() < TOLERANCE
        theirs = reference.logits(model, parameters, text, len(prompt))[len(prompt) - 1 : -1]
        assert (theirs.max(axis=-1) - theirs[np.arange(STEPS), tokens]).max() < TOLERANCE
        at_once = reference.logits(model, parameters, text)[len(prompt) - 1 : -1]
        assert abs(at_once - theirs).max() > 10 * TOLERANCE  # they turn in another way


def test_every_feature_of_every_model_is_felt():
    """A program that left one out would give other logits, and so would one that turned another way."""
    for number, row in enumerate(rows()):
        model = model_of(row)
        parameters = random_parameters(model, seed=number)
        prompt = prompts_of(model)[1]
        logits = reference.logits(model, parameters, prompt)
        for name, fewer in _without_each(row).items():
            other = reference.logits(fewer, _fitted(fewer, parameters), prompt)
            assert abs(other - logits).max() > 10 * TOLERANCE, (number, name)


def _without_each(row: Row) -> dict[str, Model]:
    """The model with one choice at a time made plain, but for those that change shapes."""
    shapes = ("layouts", "kv_heads", "feed_forward", "norm", "positions", "tied")
    alike = {("positions", 2)}  # ALiBi has no parameters, as rotary positions have none
    return {
        name: model_of(row | {name: 0})
        for name, i in row.items()
        if i and (name not in shapes or (name, i) in alike)
    }


def _fitted(model: Model, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters that a model has, those it has alone drawn."""
    drawn = random_parameters(model, seed=0)
    return {name: parameters.get(name, value) for name, value in drawn.items()}
