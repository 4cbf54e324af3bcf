"""Drawing tokens from given logits: against an oracle in float64, under every way the vocabulary is split."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.engine.drawing import F32, Drawing, of_layout, same

from partita.cost.number import array
from partita.cost.step import StepOptions, StepShape, price_step
from partita.engine.requests import Sample, arrays
from partita.engine.sampling import gumbel
from partita.measure.counts import count_jaxpr, predicted
from partita.program.sampling import ALTERNATIVES, CANDIDATES, KINDS, ROUNDS, Kind, needs
from partita.program.transformer import logits_sharding
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import Model
from partita.specs.sampling import Sampling

CUBE, ALONE = Mesh("xyz", (2, 2, 2)), Mesh("x", (1,))
SPLITS = [
    ("B L V", ALONE),
    ("B L V_xyz", CUBE),
    ("B L V_zx", CUBE),
    ("B_y L V_xz", CUBE),
    ("B_xyz L V", CUBE),
]
WIDE = 1000
"""A vocabulary of which one shard has more than its candidates."""


def logits_of(rows: int, vocabulary: int, seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, vocabulary)).astype(np.float32)


def kept(logits: np.ndarray, request: Sampling) -> np.ndarray:
    """Which tokens a request may draw, from heated logits [V]: in float64, by sorting all of them."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    allowed = shares >= request.min_p
    if request.top_k and request.top_k < len(logits):
        allowed &= logits >= np.sort(logits)[-request.top_k]
    if request.top_p < 1:
        order = np.argsort(-np.where(allowed, shares, 0), kind="stable")
        sums = np.cumsum(np.where(allowed, shares, 0)[order])
        last = np.searchsorted(sums, request.top_p * sums[-1])
        allowed &= logits >= logits[order[min(last, len(order) - 1)]]
    return allowed


def expected(
    logits: np.ndarray, samples: list[Sample], positions: np.ndarray, outputs: Any = None, prompts: Any = None
) -> list[int]:
    """The tokens that should be drawn, from the noise and a whole vocabulary in float64."""
    settings, found = arrays(samples), []
    tokens = jnp.arange(logits.shape[1])
    noise = np.asarray(gumbel(settings["seed"], settings["sample"], positions, tokens))
    for row, sample in enumerate(samples):
        request, x = sample.request, logits[row].astype(np.float64)
        for token, bias in request.logit_bias.items():
            x[token] += bias
        written = np.bincount(outputs[row] if outputs else [], minlength=len(x))
        known = written + np.bincount(prompts[row] if prompts else [], minlength=len(x)) > 0
        repeated = np.where(x > 0, x / request.repetition_penalty, x * request.repetition_penalty)
        x = np.where(known, repeated, x)
        x -= request.frequency_penalty * written + request.presence_penalty * (written > 0)
        if not request.greedy:
            x = x.astype(np.float32) / np.float32(request.temperature)
            x = np.where(kept(x, request), x + noise[row], -np.inf)
        found.append(int(x.argmax()))
    return found


REQUESTS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 5.0, "top_k": 1},
    {"temperature": 1.5, "top_k": 7},
    {"temperature": 2.0, "top_k": CANDIDATES},
    {"temperature": 3.0, "top_k": CANDIDATES + 1},
    {"temperature": 3.0, "top_k": 500, "top_p": 0.5},
    {"temperature": 3.0, "top_k": 10**9, "min_p": 0.01},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 4.0, "top_p": 0.97},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "top_p": 0.8, "top_k": 50},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 2.0, "min_p": 0.05, "top_k": 40, "top_p": 0.9},
    {"temperature": 3.0, "min_p": 0.02, "top_p": 0.6},
    {},
]


@pytest.mark.parametrize(
    ("sharding", "mesh", "vocabulary"), [(*split, WIDE) for split in SPLITS] + [(*SPLITS[3], 37)], ids=str
)
def test_every_cut_of_the_vocabulary(sharding: str, mesh: Mesh, vocabulary: int):
    """Every request's tokens, each in the least kind that serves it and in all that do more."""
    drawing = Drawing(vocabulary, sharding, mesh)
    requests = [Sampling(**settings) for settings in REQUESTS for _ in range(8)]
    samples = [Sample(request, seed, seed) for seed, request in enumerate(requests)]
    logits, positions = logits_of(len(samples), vocabulary), np.arange(len(samples)) * 3
    wanted = expected(logits, samples, positions)
    for kind in KINDS:
        found = drawing.draw(kind, logits, samples, positions=positions)
        found = np.asarray(found[0] if kind == "full" else found)
        for row, request in enumerate(requests):
            if KINDS.index(needs(request)) <= KINDS.index(kind):
                assert found[row] == wanted[row], (kind, request)


def test_what_each_request_needs():
    found = [needs(Sampling(**settings)) for settings in REQUESTS]
    assert found.count("full") == 3
    assert found.count("wide") == 4
    assert found[-1] == "greedy"
    assert needs(Sampling(logprobs=0)) == needs(Sampling(logit_bias={1: 1.0})) == "full"
    assert needs(Sampling(temperature=1, top_p=0.9, top_k=CANDIDATES + 1)) == "full"
    assert needs(Sampling(top_p=0.5)) == "greedy"


def test_of_equal_logits_the_first_is_taken_and_none_is_cut_apart():
    logits = np.zeros((64, WIDE), np.float32)
    logits[:, 100:900:100] = 3
    drawing = Drawing(WIDE, "B L V_xyz", CUBE)
    for kind in ("greedy", "sampled", "wide"):
        assert set(drawing.draw(kind, logits, same(Sampling(), 64))) == {100}
    tied = drawing.draw("sampled", logits, same(Sampling(temperature=1, top_k=3), 64))
    assert set(tied) <= set(range(100, 900, 100))
    assert len(set(tied)) == 8


# -- the distribution -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 2.0, "top_k": 20}],
    ids=str,
)
def test_tokens_are_as_frequent_as_they_are_likely(settings: dict):
    """Frequencies over 4,000 samples of one request, and over as many seeds, and positions."""
    rows, request = 4_000, Sampling(**settings)
    row = logits_of(1, 50, seed=3, spread=1.0)[0]
    logits = np.broadcast_to(row, (rows, 50))
    shares = np.exp(row.astype(np.float64) / request.temperature)
    shares = np.where(kept(row / np.float32(request.temperature), request), shares, 0)
    drawing, zeros = Drawing(50, "B L V_xyz", CUBE), np.zeros(rows, int)
    for samples, positions in (
        (same(request, rows), zeros),
        ([Sample(request, seed) for seed in range(rows)], zeros),
        ([Sample(request, seed << 32) for seed in range(rows)], zeros),
        (same(request, 1) * rows, np.arange(rows)),
    ):
        found = np.bincount(drawing.draw("wide", logits, samples, positions=positions), minlength=50)
        assert not found[shares == 0].any()
        wanted = rows * shares / shares.sum()
        assert stats.chisquare(found[shares > 0], wanted[shares > 0]).pvalue > 1e-3


def test_noise_is_gumbel_and_of_independent_numbers():
    seeds = np.array([[0, 7], [7, 0], [0, 7], [0, 7]], np.uint32)
    noise = np.asarray(
        gumbel(
            jnp.asarray(seeds),
            jnp.array([0, 0, 1, 0], jnp.uint32),
            jnp.array([5, 5, 5, 6]),
            jnp.arange(100_000),
        )
    )
    for row in noise:
        assert stats.kstest(row, stats.gumbel_r.cdf).pvalue > 1e-3
    apart = np.corrcoef(noise) - np.eye(4)
    assert abs(apart).max() < 0.015
    assert abs(np.corrcoef(noise[0, 1:], noise[0, :-1])[0, 1]) < 0.015


# -- penalties and log-probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize(("sharding", "mesh"), SPLITS[2:4], ids=str)
def test_penalties_and_biases(sharding: str, mesh: Mesh):
    vocabulary, rows = 37, 48
    random = np.random.default_rng(5)
    settings: list[dict[str, Any]] = [
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.6, "temperature": 1.0},
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.9, "temperature": 0.8, "top_p": 0.9},
        {"logit_bias": {3: 100, 36: -100}},
        {
            "logit_bias": {3: 2.5, 11: -1},
            "repetition_penalty": 1.3,
            "frequency_penalty": 0.5,
            "temperature": 1.2,
        },
    ]
    samples = [Sample(Sampling(**settings[row % 6]), 1, row) for row in range(rows)]
    prompts, outputs = ([random.integers(0, 37, 6).tolist() for _ in range(rows)] for _ in range(2))
    logits, positions = logits_of(rows, vocabulary), np.full(rows, 9)
    drawing = Drawing(vocabulary, sharding, mesh)
    tokens, counts, _ = drawing.draw(
        "full", logits, samples, positions=positions, prompts=prompts, outputs=outputs
    )
    assert np.asarray(tokens).tolist() == expected(logits, samples, positions, outputs, prompts)
    assert set(np.asarray(tokens)[4::6]) == {3}
    for row, token in enumerate(np.asarray(tokens)):
        wanted = np.bincount([*outputs[row], token], minlength=counts.shape[1])
        assert (np.asarray(counts)[row] == wanted).all()


@pytest.mark.parametrize(("sharding", "mesh", "vocabulary"), [(*SPLITS[1], WIDE), (*SPLITS[3], 11)], ids=str)
def test_log_probabilities_are_the_models_own(sharding: str, mesh: Mesh, vocabulary: int):
    request = Sampling(temperature=3.0, logit_bias={2: 1.0}, top_k=5, logprobs=20)
    logits, rows = logits_of(16, vocabulary), np.arange(16)
    tokens, _, found = Drawing(vocabulary, sharding, mesh).draw("full", logits, same(request, 16))
    wide = logits.astype(np.float64)
    wanted = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    found, tokens = np.asarray(found), np.asarray(tokens)
    assert abs(found[:, 0] - wanted[rows, tokens]).max() < 1e-5
    count = min(ALTERNATIVES, vocabulary)
    best, ids = found[:, 1 : 1 + count], found[:, 1 + ALTERNATIVES :][:, :count].astype(int)
    assert abs(best - -np.sort(-wanted)[:, :count]).max() < 1e-5
    assert (ids == np.argsort(-logits, kind="stable")[:, :count]).all()
    assert (found[:, 1 + count : 1 + ALTERNATIVES] == -np.inf).all()


# -- what is moved ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "rows"),
    [("ws1d/heads", 4), ("ws2d/batch", 8), ("wg-xyz/batch", 8), ("x=e,y=f,z=replica/batch", 8)],
)
@pytest.mark.parametrize("vocabulary", [WIDE * 3, 37])
def test_what_travels_is_what_the_cost_model_says(kind: Kind, text: str, rows: int, vocabulary: int):
    drawing = Drawing(vocabulary, of_layout(text, CUBE, vocabulary, rows), CUBE)
    ledger = drawing.price(kind, rows)
    args = drawing.arguments(logits_of(rows, vocabulary), same(Sampling(), rows))
    counted = count_jaxpr(drawing.step(kind).trace(*args).jaxpr, CUBE.size)
    assert counted.same_collectives(predicted(ledger, CUBE.size))
    assert counted.flops == ledger.total("flops") == 0
    many = drawing.price(kind, np.array([rows, rows]) * 1.0)
    assert np.allclose(array(many.total("sent_bytes")), float(ledger.total("sent_bytes")))


def test_bytes_of_each_kind_in_closed_form():
    """A row on 8 chips: greedy sends a pair, candidates are 128 numbers, a round sums 4, draws are 3."""
    sent = [float(Drawing(8000, "B L V_xyz", CUBE).price(kind, 1).total("sent_bytes")) / 4 for kind in KINDS]
    rounds = ROUNDS * 2 * 4 * 7 / 8
    greedy, sampled = 7 * 2, 7 * (CANDIDATES + 3)
    assert sent == [greedy, sampled, sampled + rounds, sampled + 2 * rounds + 7 * (2 * ALTERNATIVES + 1)]
    messages = [Drawing(8000, "B L V_xyz", CUBE).price(kind, 1).total("messages") for kind in KINDS]
    assert messages == [1, 2, 2 + ROUNDS, 3 + 2 * ROUNDS]


def test_one_chip_sends_nothing():
    for kind in KINDS:
        assert Drawing(100, "B L V", ALONE).price(kind, 4).total("sent_bytes") == 0


@pytest.mark.parametrize("kind", ["sampled", "wide", "full"])
def test_memory_is_what_the_cost_model_says_or_little_less(kind: Kind):
    """Here the draw alone; logits are far more than all else."""
    drawing = Drawing(20_000, "B L V_xyz", CUBE)
    args = drawing.arguments(logits_of(8, 20_000), same(Sampling(), 8))
    used = drawing.step(kind).lower(*args).compile().memory_analysis()
    held = used.argument_size_in_bytes + used.temp_size_in_bytes + used.output_size_in_bytes
    assert 0.7 < held / drawing.price(kind, 8).held_bytes <= 1.05


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_the_model_is_priced_with_its_draw(kind: Kind):
    model = Model(name="m", layers=2, d_model=64, d_ff=64, heads=8, kv_heads=8, head_dim=8, vocabulary=WIDE)
    roles = parse_layout("ws2d/batch", "xyz")
    layout = resolve(roles, plan_storage(model, CUBE, roles, roles), CUBE, 8, 1)
    drawing = Drawing(WIDE, logits_sharding(layout), CUBE)

    def sent(sampler: Kind | None) -> dict:
        step = price_step(model, layout, CUBE.size, F32, StepShape(8, 1, 64), StepOptions(sampler=sampler))
        return dict(predicted(step.ledger, CUBE.size).sent_bytes)

    without, drawn = sent(None), predicted(drawing.price(kind, 8), CUBE.size).sent_bytes
    assert sent(kind) == {key: without.get(key, 0) + drawn.get(key, 0) for key in without | drawn}
