"""Pools of their own for prefill and decode: balanced, within their limits, and linked as they are."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from partita.errors import InputError
from partita.planner.chips import parse_clusters
from partita.planner.disaggregation import DisaggregatedPlan, plan_disaggregated, warnings
from partita.planner.pair import Basis
from partita.planner.request import PlanRequest
from partita.specs import Cluster, Formats, Workload, catalogue_model
from partita.specs.units import format_seconds

TPU = tuple(parse_clusters("tpu-v4:auto", 4))
H100 = tuple(parse_clusters("h100:auto", 8))


def request(
    model: str = "palm-8b", workload: dict[str, int] | None = None, basis: Basis = "bound", **limits: Any
) -> PlanRequest:
    sizes = {"prompt": 512, "output": 64, "batch": 1} | (workload or {})
    return PlanRequest(
        model=catalogue_model(model),
        clusters=TPU,
        formats=(Formats(weights="int8"),),
        workload=Workload(**sizes),
        objective="cost",
        auto_batch="batch" not in (workload or {}),
        basis=basis,
        **limits,
    )


def slowed(clusters: Sequence[Cluster], factor: float) -> tuple[Cluster, ...]:
    """The same clusters with slower links."""
    found = []
    for cluster in clusters:
        fabric = (a.model_copy(update={"link_bandwidth": a.link_bandwidth / factor}) for a in cluster.fabric)
        found.append(cluster.model_copy(update={"fabric": tuple(fabric)}))
    return tuple(found)


def crossing_seconds(pools: DisaggregatedPlan, decode_units: int, bandwidth: float) -> float:
    """Seconds that one prefill's keys and values, layer by layer, take between pools of such links."""
    model, workload = pools.prefill.prediction.setting.model, pools.prefill.prediction.setting.workload
    kept = workload.prompt if model.window is None else min(workload.prompt, model.window)
    tokens = model.global_layers * workload.prompt + model.local_layers * kept
    numbers = 2 * model.kv_heads * model.head_dim * tokens * pools.prefill.prediction.batch
    sending = min(pools.prefill.chips, decode_units * pools.decode.chips)
    return numbers * 2 / (bandwidth * sending)  # bf16


def best_counts(
    pools: DisaggregatedPlan, max_chips: int, bandwidth: float, rate: float = 0.0
) -> tuple[float, int, int]:
    """Chip-seconds per prompt of the same two units in the cheapest numbers: every one tried."""
    found = []
    for mine, theirs in product(range(1, max_chips + 1), repeat=2):
        chips = mine * pools.prefill.chips + theirs * pools.decode.chips
        crossing = mine * pools.prefill.prediction.batch / crossing_seconds(pools, theirs, bandwidth)
        prompts = min(mine * pools.prefill.rate, theirs * pools.decode.rate, crossing)
        if chips <= max_chips and prompts >= rate:
            found.append((chips / prompts, mine, theirs))
    return min(found)


# -- sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "clusters", "max_chips", "bandwidth", "workload"),
    [
        ("palm-8b", TPU, 7, 270e9, {}),
        ("palm-8b", TPU, 40, 270e9, {"output": 8}),
        ("gemma-3-12b", H100, 24, 50e9, {"prompt": 4096}),
        ("llama-3-8b", H100, 13, 50e9, {"prompt": 100, "output": 900, "samples": 3}),
    ],
)
def test_no_other_numbers_of_the_units_are_cheaper(model, clusters, max_chips, bandwidth, workload):
    pools = plan_disaggregated(request(model, workload), clusters, max_chips)
    assert pools.prefill.prediction.fits
    assert pools.decode.prediction.fits
    assert pools.chips <= max_chips
    cost, *_ = best_counts(pools, max_chips, bandwidth)
    assert pools.chips / pools.prompts_per_second == pytest.approx(cost, rel=1e-9)
    # one unit less of either pool and fewer prompts get through
    for fewer in ("prefill_units", "decode_units"):
        if getattr(pools, fewer) > 1:
            less = replace(pools, **{fewer: getattr(pools, fewer) - 1})
            assert less.prompts_per_second < pools.prompts_per_second


def test_rates_and_costs_are_those_of_the_units():
    pools = plan_disaggregated(request(workload={"samples": 2}), TPU, 12)
    prefill, decode = pools.prefill.prediction, pools.decode.prediction
    assert pools.prefill.rate == pytest.approx(prefill.batch / prefill.total_seconds)
    assert pools.decode.rate == pytest.approx(decode.batch / 2 / decode.total_seconds)
    tokens = pools.prompts_per_second * 2 * 64
    assert pools.chip_seconds_per_output_token == pytest.approx(pools.chips / tokens)
    assert pools.ttft_seconds == prefill.total_seconds
    assert pools.latency_seconds == pytest.approx(
        prefill.total_seconds + pools.transfer_seconds + decode.total_seconds
    )


# -- what crosses between them ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-12b"])
def test_every_layers_keys_and_values_cross_over_the_network(model: str):
    """32 + 32 tokens in a window of 1024 cross whole; of 4096 tokens a local layer has kept but the last."""
    for prompt in (64, 4096):
        pools = plan_disaggregated(request(model, {"prompt": prompt}), H100, 16)
        seconds = crossing_seconds(pools, pools.decode_units, 50e9)
        assert pools.transfer_seconds == pytest.approx(seconds, rel=1e-12)
        sending = min(pools.prefill.chips, pools.decode_units * pools.decode.chips)
        assert pools.transfer_bytes == pytest.approx(seconds * 50e9 * sending)
        layers = pools.transfer_bytes / (pools.prefill.prediction.batch * prompt)
        whole = pools.prefill.prediction.setting.model.kv_elements_per_token * 2
        windowed = model == "gemma-3-12b" and prompt > 1024
        assert layers == pytest.approx(whole * (8 + 40 / 4) / 48 if windowed else whole)


@pytest.mark.parametrize(("output", "factor"), [(64, 4000), (2048, 4000), (1024, 1000), (2048, 10000)])
def test_slow_links_limit_the_rate_and_count_where_units_are_counted(output: int, factor: int):
    given = request(workload={"output": output})
    fast, slow = plan_disaggregated(given, TPU[:1], 9), plan_disaggregated(given, slowed(TPU[:1], factor), 9)
    crossing = slow.prefill_units * slow.prefill.prediction.batch / slow.transfer_seconds
    assert crossing < slow.prefill_units * slow.prefill.rate
    assert slow.prompts_per_second == pytest.approx(min(crossing, slow.decode_units * slow.decode.rate))
    assert slow.chip_seconds_per_output_token > fast.chip_seconds_per_output_token
    cost, *_ = best_counts(slow, 9, 270e9 / factor)
    assert slow.chips / slow.prompts_per_second == pytest.approx(cost, rel=1e-9)


# -- limits -----------------------------------------------------------------------------------------------


def test_limits_are_kept_and_cost_something():
    free = plan_disaggregated(request(), TPU, 16)
    limits: dict[str, Any] = {
        "max_ttft": 0.6 * free.ttft_seconds,
        "max_tpot": 0.4 * free.decode.prediction.step_seconds,
    }
    kept = plan_disaggregated(request(**limits), TPU, 16)
    assert kept.ttft_seconds <= limits["max_ttft"]
    assert kept.decode.prediction.step_seconds <= limits["max_tpot"]
    assert kept.chip_seconds_per_output_token > free.chip_seconds_per_output_token


@pytest.mark.parametrize("field", ["max_ttft", "max_tpot"])
def test_a_limit_that_no_unit_keeps_is_refused(field: str):
    limit: dict[str, Any] = {field: 1e-7}
    with pytest.raises(InputError, match="no unit meets it: the fastest bound is") as caught:
        plan_disaggregated(request(**limit), TPU, 8)
    assert (caught.value.field, caught.value.value) == (field, format_seconds(1e-7))


def test_a_rate_is_taken_by_the_cheapest_pools_that_can():
    free = plan_disaggregated(request(), TPU, 24)
    rate = 1.5 * plan_disaggregated(request(), TPU, 4).prompts_per_second
    kept = plan_disaggregated(request(rate=rate), TPU, 24)
    assert kept.prompts_per_second >= rate
    assert kept.chip_seconds_per_output_token >= free.chip_seconds_per_output_token
    with pytest.raises(InputError, match="no pools of these chips sustain it: at most") as caught:
        plan_disaggregated(request(rate=1000 * rate), TPU, 24)
    assert (caught.value.field, caught.value.value) == ("rate", f"{1000 * rate:.6g}/s")


def test_by_the_estimate_rates_limits_and_the_crossing_are_those_of_the_profile():
    free = plan_disaggregated(request("llama-3-8b", basis="estimate"), H100, 16)
    prefill, decode = (unit.prediction.estimate for unit in (free.prefill, free.decode))
    assert prefill is not None
    assert decode is not None
    assert free.prefill.rate == pytest.approx(free.prefill.prediction.batch / prefill.total_seconds)
    assert free.decode.rate == pytest.approx(free.decode.prediction.batch / decode.total_seconds)
    # h100.toml: the network's message and its share of 50 GB/s
    least = crossing_seconds(free, free.decode_units, 50e9)
    profile = prefill.profile
    start, share = (profile.link(n, "network", "collective-permute") for n in ("message_seconds", "share"))
    assert start > 0
    assert share < 1
    assert free.transfer_seconds == pytest.approx(start + least / share)
    assert free.latency_seconds == pytest.approx(
        prefill.total_seconds + free.transfer_seconds + decode.total_seconds
    )
    written = free.as_json()
    assert written["transfer"]["bound"]["seconds"] == pytest.approx(least)
    assert written["transfer"]["estimate"]["seconds"] == free.transfer_seconds
    assert written["ranked_by"] == "estimate"
    limit = 0.7 * decode.step_seconds
    kept = plan_disaggregated(
        request("llama-3-8b", basis="estimate", max_tpot=limit), H100, 16
    ).decode.prediction
    assert kept.estimate is not None
    assert kept.estimate.step_seconds <= limit


def test_two_pools_need_a_unit_each():
    assert plan_disaggregated(request(), TPU, 2).chips == 2
    with pytest.raises(InputError, match="two pools need at least 2 chips here"):
        plan_disaggregated(request(), TPU, 1)
    with pytest.raises(InputError, match="no prefill unit of these chips fits the model"):
        plan_disaggregated(request("palm-540b"), TPU, 8)


# -- what is given, and what is said -------------------------------------------------------------------------


def test_a_batch_and_a_prefill_batch_that_are_given_are_those_of_the_pools():
    pools = plan_disaggregated(request(workload={"batch": 24, "prefill_batch": 3}), TPU, 16)
    assert (pools.decode.prediction.batch, pools.prefill.prediction.batch) == (24, 3)
    free = plan_disaggregated(request(), TPU, 16)
    assert free.chip_seconds_per_output_token < pools.chip_seconds_per_output_token


def test_the_wait_for_a_prefill_batch_is_said_and_limited():
    short = {"prompt": 16}  # so that prompts are read together
    rate = 0.2 * plan_disaggregated(request(workload=short), TPU, 16).prompts_per_second
    free = plan_disaggregated(request(workload=short, rate=rate), TPU, 16)
    size, units = free.prefill.prediction.batch, free.prefill_units
    assert size > 1
    wait = (size - 1) * units / rate
    assert free.fill_seconds(rate) == pytest.approx(wait)
    (said,) = warnings(free, request(workload=short, rate=rate))
    assert said.endswith(f"prefill batch of {size} waits {format_seconds(wait)} for the last")
    limit = free.ttft_seconds + 0.5 * wait
    kept = plan_disaggregated(request(workload=short, rate=rate, max_ttft=limit), TPU, 16)
    assert kept.ttft_seconds + kept.fill_seconds(rate) <= limit
    assert kept.prompts_per_second >= rate
    assert kept.prefill.prediction.batch < size


def test_limits_that_the_pools_estimates_break_are_said_at_their_table():
    free = plan_disaggregated(request("llama-3-8b"), H100, 8)
    prefill, decode = free.prefill.prediction, free.decode.prediction
    assert prefill.estimate is not None
    assert decode.estimate is not None
    limits: dict[str, Any] = {
        "max_ttft": 0.5 * (prefill.total_seconds + prefill.estimate.total_seconds),
        "max_tpot": 0.5 * (decode.step_seconds + decode.estimate.step_seconds),
    }
    said = warnings(free, request("llama-3-8b", **limits))
    assert [text.partition(":")[0] for text in said] == ["prefill pool", "decode pool"]
    assert all("which the bound meets; --by estimate" in text for text in said)
    assert warnings(free, request("llama-3-8b")) == []
    by_estimate = plan_disaggregated(request("llama-3-8b", basis="estimate"), H100, 8)
    assert warnings(by_estimate, request("llama-3-8b", basis="estimate")) == []
