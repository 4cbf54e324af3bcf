"""Servers under load: closed forms, brute force and properties; a pair serves alike requests as its own."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.pairs import pair_of
from tests.planner.settings import palm, setting

from partita.cost.prediction import predict
from partita.planner.pair import Pair
from partita.planner.serving import (
    Server,
    mean_slot_context,
    serve,
    server,
    server_of,
)
from partita.sharding.layout import plan_storage
from partita.sharding.roles import parse_layout
from partita.specs import Formats
from partita.specs.traffic import Traffic

EXAMPLE = Server(chips=8, slots=32, prefill_seconds=0.1, step_seconds=0.02, mean_output=160)
"""A request takes 0.1 s of prefill and 160 x 0.02 / 32 = 0.1 s of decode: 5 requests a second."""

positive = st.floats(1e-3, 1e3)
servers = st.builds(
    Server,
    chips=st.integers(1, 4096),
    slots=st.integers(1, 1024),
    prefill_seconds=positive,
    step_seconds=positive,
    mean_output=st.floats(1, 1e5),
    samples=st.integers(1, 8),
)


def test_a_server_by_hand():
    assert EXAMPLE.seconds_per_request == pytest.approx(0.2)
    assert EXAMPLE.requests_per_second == pytest.approx(5)
    assert EXAMPLE.output_tokens_per_second == pytest.approx(800)
    assert EXAMPLE.prefill_share == pytest.approx(0.5)
    assert EXAMPLE.chip_seconds_per_request == pytest.approx(1.6)
    assert EXAMPLE.chip_seconds_per_output_token == pytest.approx(0.01)
    # 8 chips at 3.60 an hour are 0.008 a second, for 800 tokens
    assert EXAMPLE.price_per_million_output_tokens(3.6) == pytest.approx(10)


def test_under_half_load_the_same_chips_write_half_the_tokens():
    assert EXAMPLE.utilisation(2.5) == pytest.approx(0.5)
    assert EXAMPLE.price_per_million_output_tokens(3.6, rate=2.5) == pytest.approx(20)
    # prefills take a quarter of the time, so steps come every 0.02 / 0.75 s
    assert EXAMPLE.output_token_seconds(2.5) == pytest.approx(0.02 / 0.75)
    assert EXAMPLE.filled_slots(2.5) == pytest.approx(2.5 * 160 * 0.02 / 0.75)
    assert EXAMPLE.sustains(2.5)
    assert not EXAMPLE.sustains(5.1)


def test_its_json():
    highest = EXAMPLE.as_json()
    assert highest["requests_per_second"] == pytest.approx(5)
    assert highest.keys().isdisjoint({"rate", "sustained", "price_per_million_output_tokens"})
    loaded = EXAMPLE.as_json(rate=2.5, price_per_chip_hour=3.6)
    assert loaded == pytest.approx(
        highest
        | {"rate": 2.5, "sustained": True, "utilisation": 0.5, "output_token_seconds": 0.02 / 0.75}
        | {"filled_slots": 8 / 0.75, "price_per_chip_hour": 3.6, "price_per_million_output_tokens": 20}
    )
    assert json.loads(json.dumps(loaded)) == loaded


def test_two_samples_share_one_prefill():
    two = Server(chips=8, slots=32, prefill_seconds=0.1, step_seconds=0.02, mean_output=160, samples=2)
    assert two.seconds_per_request == pytest.approx(0.3)
    assert two.output_tokens_per_second == pytest.approx(320 / 0.3)


@given(servers, st.floats(1e-3, 10))
def test_slots_are_full_at_the_highest_rate_and_above(server: Server, factor: float):
    rate = factor * server.requests_per_second
    assert server.utilisation(rate) == pytest.approx(factor)
    full = server.filled_slots(server.requests_per_second)
    assert full == pytest.approx(server.slots, rel=1e-6)
    if factor > 1:
        assert server.filled_slots(rate) == pytest.approx(full)
        assert not server.sustains(rate)
    else:
        assert server.filled_slots(rate) <= full
    assert server.output_token_seconds(rate) >= server.step_seconds
    # time of a server is prefill or steps: at the highest rate they fill it
    steps = server.output_tokens_per_second / server.slots
    work = server.requests_per_second * server.prefill_seconds + steps * server.step_seconds
    assert work == pytest.approx(1)


@given(servers, positive, st.floats(1e-3, 1))
def test_idle_chips_are_paid_for(server: Server, price: float, factor: float):
    rate = factor * server.requests_per_second
    least = server.price_per_million_output_tokens(price)
    assert least == pytest.approx(price / 3600 * 1e6 * server.chip_seconds_per_output_token)
    assert server.price_per_million_output_tokens(price, rate) == pytest.approx(least / factor)


@given(st.lists(servers, min_size=1, max_size=5), st.floats(1e-3, 1e3))
def test_arrays_of_plans_are_priced_as_each_alone(alone: list[Server], rate: float):
    names = ("chips", "slots", "prefill_seconds", "step_seconds", "mean_output", "samples")
    together = Server(**{name: np.array([getattr(one, name) for one in alone]) for name in names})
    for figure in (
        lambda server: server.requests_per_second,
        lambda server: server.chip_seconds_per_output_token,
        lambda server: server.prefill_share,
        lambda server: server.filled_slots(rate),
        lambda server: server.output_token_seconds(rate),
        lambda server: server.sustains(rate),
        lambda server: server.price_per_million_output_tokens(2.5, rate),
    ):
        assert figure(together).tolist() == pytest.approx([figure(one) for one in alone])


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=8))
def test_the_context_of_a_slot_is_that_of_every_step_of_every_request(rows: list[tuple[int, int, int]]):
    prompt, output, weight = zip(*rows, strict=True)
    met = [p + t for p, o, w in rows for _ in range(w) for t in range(1, o + 1)]
    traffic = Traffic(prompt, output, weight=weight)
    assert mean_slot_context(traffic) == pytest.approx(np.mean(met))


def test_long_requests_are_met_more_often():
    assert mean_slot_context(Traffic.of(2048, 64)) == 2048 + 65 / 2
    # nine short outputs after long prompts, one long output after a short prompt: mostly the last is met
    mixed = Traffic([1000, 10], [1, 991], weight=[9, 1])
    assert mean_slot_context(mixed) == pytest.approx((9 * 1001 + 991 * (10 + 992 / 2)) / 1000)


def test_a_linear_cost_of_traffic_is_exact_however_few_the_buckets():
    random = np.random.default_rng(2)
    prompt = random.integers(2, 5000, 3000)
    traffic = Traffic(prompt, random.integers(1, 700, 3000), (prompt * random.random(3000)).astype(int))
    asked: list[float] = []

    def step_seconds(context: float) -> float:
        asked.append(context)
        return 0.01 + 1e-6 * context

    server = serve(
        traffic,
        chips=64,
        slots=128,
        prefill_seconds=lambda prompt, prefix: np.stack([1e-4 * (prompt - prefix), 2e-4 * prompt]),
        step_seconds=step_seconds,
        buckets=5,
    )
    assert server.prefill_seconds == pytest.approx([1e-4 * traffic.mean("new"), 2e-4 * traffic.mean_prompt])
    assert asked == [mean_slot_context(traffic)]
    assert server.mean_output == traffic.mean_output
    decode = traffic.mean_output * (0.01 + 1e-6 * asked[0]) / 128
    assert server.requests_per_second == pytest.approx(1 / (server.prefill_seconds + decode))


def test_the_server_of_a_plan_costs_what_the_plan_says():
    setting = palm(Formats(weights="int8"), batch=64, prefill_batch=1)
    letters = setting.mesh.axes
    prefill, decode = parse_layout("ws2d/heads", letters), parse_layout("ws2d/batch", letters)
    storage = plan_storage(setting.model, setting.mesh, prefill, decode)
    pair = Pair(predict(setting, "prefill", prefill, storage), predict(setting, "decode", decode, storage))
    server = server_of(pair)
    assert server.chip_seconds_per_output_token == pytest.approx(pair.chip_seconds_per_output_token)
    one_shape = serve(
        Traffic.of(2048, 64),
        chips=64,
        slots=64,
        prefill_seconds=lambda prompt, prefix: np.full(len(prompt), pair.prefill_seconds / 64),
        step_seconds=lambda context: pair.decode.total_seconds / 64,
    )
    assert one_shape.seconds_per_request == pytest.approx(server.seconds_per_request)


FIGURES = ("prefill_seconds", "step_seconds", "seconds_per_request", "chip_seconds_per_output_token")

PAIRS = {
    "one layout": pair_of(palm(Formats(weights="int8"), batch=64, prefill_batch=1), "ws2d/batch"),
    "two layouts": pair_of(palm(batch=512, prefill_batch=64), "wg-xy/batch", "ws2d/batch"),
    "samples": pair_of(
        setting("palm-8b", "tpu-v4:2x2x2", batch=32, prefill_batch=4, samples=2), "ws1d/heads"
    ),
    "a switch": pair_of(setting("palm-8b", "tpu-v4:2x2x2", batch=32), "ws2d/context", "ws2d/batch"),
    "windows": pair_of(setting("gemma-3-12b", "h100:1x8", batch=8, prompt=3000, output=33), "ws1d/heads"),
    "a prefix": pair_of(
        setting("llama-3-8b", "h100:1x8", batch=16, prompt=900, prefix=500, chunk=100), "ws1d/heads"
    ),
}


def alike(pair: Pair, count: int) -> Traffic:
    """So many requests, each as the pair's own workload has them."""
    workload = pair.decode.setting.workload
    return Traffic([workload.prompt] * count, [workload.output] * count, [workload.prefix] * count)


def figures(found: Server) -> list[float]:
    return [float(getattr(found, name)) for name in FIGURES]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("count", [1, 50])
def test_equal_requests_are_served_as_the_workload_is(pair: Pair, count: int):
    """Steps all but exactly: they are priced at the mean context, rounded to a token."""
    own, found = server_of(pair), server(pair, alike(pair, count))
    assert (found.chips, found.slots, found.samples) == (own.chips, own.slots, own.samples)
    assert found.prefill_seconds == pytest.approx(own.prefill_seconds, rel=1e-9)
    assert figures(found) == pytest.approx(figures(own), rel=1e-3)
    assert figures(server(pair, None)) == figures(own)


def test_a_mix_is_prefilled_in_the_mean_of_its_prompts():
    pair = PAIRS["a switch"]
    short, long = Traffic.of(100, 10), Traffic.of(2000, 30)
    mixed = Traffic([100, 2000], [10, 30], weight=[3, 1])
    seconds = [float(server(pair, each).prefill_seconds) for each in (short, mixed, long)]
    assert seconds[1] == pytest.approx((3 * seconds[0] + seconds[2]) / 4, rel=1e-9)
    assert seconds[0] < seconds[2] / 5
    assert server(pair, mixed).mean_output == (3 * 10 + 30) / 4


def test_one_prompt_takes_its_prefill_and_the_switch_of_its_cache():
    pair, prompt = PAIRS["a switch"], 700
    here = pair.decode.setting
    given = type(here)(
        here.model, here.cluster, here.mesh, here.formats, here.workload.resized(prompt=prompt)
    )
    phases = (pair.prefill, pair.decode)
    prefill, decode = (predict(given, p.phase, p.layout.roles, p.layout.storage) for p in phases)
    moved = Pair(prefill, decode)
    assert moved.reshard_seconds > 0
    found = server(pair, Traffic.of(prompt, 64))
    assert found.prefill_seconds == pytest.approx(
        (moved.prefill.total_seconds + moved.reshard_seconds) / pair.prefill.batch
    )


def test_longer_requests_take_longer_and_cached_prefixes_shorten_prefill():
    pair = PAIRS["one layout"]
    rates = [float(server(pair, Traffic.of(prompt, 64)).requests_per_second) for prompt in (500, 1000, 3000)]
    assert list(np.argsort(rates)) == [2, 1, 0]
    steps = [server(pair, Traffic.of(prompt, 64)).step_seconds for prompt in (500, 3000)]
    assert steps[0] < steps[1]
    cached = server(pair, Traffic.of(1000, 64, 600))
    assert cached.prefill_seconds < 0.6 * server(pair, Traffic.of(1000, 64)).prefill_seconds
    assert cached.step_seconds == server(pair, Traffic.of(1000, 64)).step_seconds
