"""A request's tokens depend on its own prompt, settings and seed, not on mates, slots, chunks or layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.asking import engine, prompt, request

from partita.engine.engine import Engine, EngineOptions
from partita.engine.requests import Sample
from partita.engine.slots import Place, Slots
from partita.sharding import Mesh
from partita.specs.sampling import Sampling

CUBE = Mesh("xyz", (2, 2, 2))
RANDOM = np.random.default_rng(11)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.3, "n": 2},
    {"temperature": 2.0, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
    {},
    {"temperature": 3.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"temperature": 1.5, "min_p": 0.01, "logit_bias": {7: 2.0}},
]
ASKED = [
    (prompt(RANDOM), Sampling(max_tokens=12, ignore_eos=True, seed=seed, **settings))
    for seed, settings in enumerate(SETTINGS)
]


def tokens(runs: Engine, asked: list[tuple[list[int], Sampling]]) -> list[list[list[int]]]:
    found = runs.complete([ids for ids, _ in asked], [ask for _, ask in asked])
    return [[sample.tokens for sample in samples] for samples in found]


@pytest.fixture(scope="module")
def usual() -> Engine:
    return engine()


@pytest.fixture(scope="module")
def alone(usual: Engine) -> list[list[list[int]]]:
    """Tokens of each request asked on its own."""
    found = [tokens(usual, [each])[0] for each in ASKED]
    assert [len(samples) for samples in found] == [2, 1, 1, 1, 1, 1]
    assert len({tuple(sample) for samples in found for sample in samples}) == 7
    return found


def test_mates_and_their_order(usual: Engine, alone: list[list[list[int]]]):
    assert tokens(usual, ASKED) == alone
    assert tokens(usual, ASKED[::-1]) == alone[::-1]
    others = [(prompt(RANDOM), request(RANDOM, "full")) for _ in range(9)]
    assert tokens(usual, [*others[:4], *ASKED, *others[4:]])[4 : 4 + len(ASKED)] == alone


def test_chunks(alone: list[list[list[int]]]):
    assert tokens(engine(options=EngineOptions(chunk=5)), ASKED) == alone


@pytest.mark.parametrize(
    "layout", ["wg-xyz/batch", "ws1d/context", "x=replica,y=f,z=e/x=batch,y=heads,z=heads"]
)
def test_layouts(alone: list[list[list[int]]], layout: str):
    assert tokens(engine(layout, CUBE), ASKED) == alone


def test_slots_filled_at_other_times(usual: Engine, alone: list[list[list[int]]]):
    """One request after another, each into the last free slot while others are being decoded."""
    asked = ASKED[1:]
    first, reading = usual.read([ids for ids, _ in asked], [ask for _, ask in asked], 8)
    read = [(prompts, row) for prompts in reading for row in range(len(prompts.ids))]
    slots = Slots(usual.programs, usual.parameters, first.shape)
    found: list[list[int]] = [[] for _ in asked]
    places = [
        Place(row, slots.count - 1 - i, Sample(ask, ask.seed or 0))
        for i, ((_, row), (_, ask)) in enumerate(zip(read, asked, strict=True))
    ]
    for number in range(len(asked) + 11):
        if number:
            step = slots.step()
            for own, place in zip(found, places[:number], strict=False):
                if len(own) < 12:
                    own.append(int(step.tokens[place.slot]))
                if len(own) == 12 and slots.samples[place.slot] is not None:
                    slots.free(place.slot)
        if number < len(asked):
            place = places[number]
            found[number].append(int(slots.insert(read[number][0], [place]).tokens[place.slot]))
    assert found == [samples[0] for samples in alone[1:]]


def test_seeds_make_the_difference(usual: Engine, alone: list[list[list[int]]]):
    others = [(ids, ask.model_copy(update={"seed": 100 + i})) for i, (ids, ask) in enumerate(ASKED)]
    changed = [a != b for a, b in zip(tokens(usual, others), alone, strict=True)]
    assert changed == [not ask.greedy for _, ask in ASKED]
    unseeded = [(ids, ask.model_copy(update={"seed": None})) for ids, ask in ASKED[:1]]
    assert tokens(usual, unseeded) != tokens(usual, unseeded)
