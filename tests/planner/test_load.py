"""A pair of layouts under requests that differ: it serves alike requests as its own workload."""

import numpy as np
import pytest
from tests.planner.pairs import pair_of
from tests.planner.settings import palm, setting

from partita.cost.prediction import predict
from partita.planner.load import server
from partita.planner.pair import Pair
from partita.planner.traffic import Server, server_of
from partita.specs import Formats
from partita.specs.traffic import Traffic

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
