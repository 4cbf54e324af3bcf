"""The estimate: each constant does what it says, none is below its bound, arrays give what numbers give."""

import math

import numpy as np
import pytest

from partita.cost.estimate import estimate, message_seconds, operation_seconds, transfer_seconds
from partita.cost.ledger import Entry, Ledger
from partita.cost.links import Level, Links
from partita.cost.prediction import Prediction, Setting, predict
from partita.cost.roofline import Peaks, bound
from partita.cost.step import StepShape, price_step
from partita.sharding.layout import plan_storage, resolve
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import parse_layout
from partita.sharding.spec import parse
from partita.specs import Constant, Formats, Profile, Workload, catalogue_model, parse_cluster

TORUS = Links((Level(6.0, kind="torus", axes=3),), {"x": (4,), "y": (4,), "z": (4,)})
NODES = Links((Level(1.0, kind="network"), Level(10.0, kind="switch")), {"x": (2, 1), "y": (1, 8)})
PEAKS = Peaks(100.0, 10.0, TORUS)


def profile(constants: dict[str, float] | None = None) -> Profile:
    fixed = {name: Constant(value=value, fixed="given") for name, value in (constants or {}).items()}
    return Profile(name="made", source="here", constants=fixed)


def operation(**costs: float) -> Entry:
    return Entry("layer", "einsum", "", (), parse("B L"), **costs)  # type: ignore[arg-type]


def collective(kind: str, axes: str, sent: float = 0.0) -> Entry:
    return Entry("layer", kind, "", (), parse("B L"), axes=axes, sent_bytes=sent, messages=1)


# -- operations -----------------------------------------------------------------------------------------


def test_an_operation_takes_the_longer_of_arithmetic_and_memory():
    given = profile({"matmul_share": 0.5, "memory_share": 0.25})
    assert operation_seconds(operation(flops=1000), PEAKS, given) == 1000 / 50
    assert operation_seconds(operation(flops=1000, weight_bytes=30, kv_bytes=40), PEAKS, given) == 70 / 2.5


def test_half_rows_reach_half_of_what_a_large_matmul_does():
    given = profile({"matmul_share": 0.5, "half_rows": 30})
    for rows, reached in ((30, 0.25), (90, 0.375), (1e9, 0.5)):
        flops = 2 * rows * 7.0
        seconds = operation_seconds(operation(flops=flops, second=7.0), PEAKS, given)
        assert flops / seconds / 100 == pytest.approx(reached)


def test_operations_do_not_hide_in_each_other():
    """One bound by arithmetic and one by memory: the bound takes the larger sum, a run both."""
    ledger = Ledger([operation(flops=500), operation(weight_bytes=50)])
    assert bound(ledger, PEAKS).step_seconds == 5
    assert estimate(ledger, PEAKS, profile()).step_seconds == 10


def test_activations_count_as_far_as_they_go_through_memory():
    given = profile({"activation_share": 0.5})
    assert operation_seconds(operation(weight_bytes=10, moved_bytes=40), PEAKS, given) == 3


# -- collectives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axes", "links"), [("x", 1 / 3), ("yz", 2 / 3), ("xyz", 1)])
def test_on_a_torus_a_collective_has_the_links_of_its_own_axes(axes: str, links: float):
    seconds = transfer_seconds(collective("all-gather", axes, 12.0), TORUS, profile({"torus/share": 0.5}))
    assert seconds == pytest.approx(12 / (6 * links * 0.5))


def test_the_slower_level_counts_with_its_own_share():
    entry = collective("all-gather", "xy", 15.0)  # a part of 1/15 over the network, 14/15 over the switch
    assert transfer_seconds(entry, NODES, profile()) == pytest.approx(1.4)
    assert transfer_seconds(entry, NODES, profile({"network/share": 0.1})) == pytest.approx(10)


def test_a_kind_of_collective_may_have_a_share_of_its_own():
    given = profile({"torus/share": 0.5, "torus/all-to-all/share": 0.25})
    plain, own = (
        transfer_seconds(collective(k, "x", 1.0), TORUS, given) for k in ("all-gather", "all-to-all")
    )
    assert own == pytest.approx(2 * plain)


@pytest.mark.parametrize(
    ("kind", "axes", "starts", "hops"),
    [
        ("all-gather", "x", 1, 3),
        ("all-gather", "xyz", 3, 9),
        ("all-reduce", "x", 1, 6),
        ("collective-permute", "xy", 1, 1),
    ],
)
def test_on_a_torus_a_message_starts_on_every_axis_and_passes_the_others(
    kind: str, axes: str, starts: int, hops: int
):
    given = profile({"torus/message_seconds": 1e-3, "torus/hop_seconds": 1e-5})
    found = message_seconds(collective(kind, axes), TORUS, given)
    assert found == pytest.approx(starts * 1e-3 + hops * 1e-5)


@pytest.mark.parametrize(
    ("kind", "axes", "more"),
    [
        ("all-gather", "x", 2),
        ("all-gather", "y", 8 / 7),
        ("all-reduce", "y", 8 / 7),
        ("collective-permute", "y", 1),
    ],
)
def test_threads_of_one_memory_copy_their_own_shard_too(kind: str, axes: str, more: float):
    """k - 1 of k shards are sent and k copied; a permute has one shard, which it sends."""
    own = profile({"network/own_share": 1.0, "switch/own_share": 1.0})
    plain, copied = (transfer_seconds(collective(kind, axes, 28.0), NODES, p) for p in (profile(), own))
    assert copied == pytest.approx(more * plain)


def test_a_kind_of_collective_may_start_as_its_own_figure_says():
    given = {"switch/message_seconds": 1e-4, "switch/all-reduce/message_seconds": 1.5e-4}
    assert message_seconds(collective("all-reduce", "y"), NODES, profile(given)) == pytest.approx(1.5e-4)
    assert message_seconds(collective("all-gather", "y"), NODES, profile(given)) == pytest.approx(1e-4)


def test_a_message_starts_on_every_level_it_spans():
    given = profile(
        {"network/message_seconds": 1e-3, "switch/message_seconds": 1e-4, "switch/hop_seconds": 1e-5}
    )
    assert message_seconds(collective("all-gather", "x"), NODES, given) == pytest.approx(1e-3)
    assert message_seconds(collective("all-gather", "xy"), NODES, given) == pytest.approx(1.1e-3 + 7e-5)


def test_what_is_hidden_needs_operations_to_hide_behind():
    given = profile({"hidden_share": 0.5})
    behind = Ledger([operation(flops=10_000), collective("all-gather", "xyz", 60.0)])
    assert estimate(behind, PEAKS, given).communication_seconds == pytest.approx(5)
    alone = Ledger([operation(flops=100), collective("all-gather", "xyz", 60.0)])
    assert estimate(alone, PEAKS, given).communication_seconds == pytest.approx(10 - 1)


def test_layers_and_steps_take_time_of_their_own():
    given = profile({"layer_seconds": 1e-3, "step_seconds": 0.1})
    found = estimate(Ledger([operation(flops=100)], layers=7), PEAKS, given)
    assert found.device_seconds == pytest.approx(1.007)
    assert found.step_seconds == pytest.approx(1.107)


# -- whole predictions ----------------------------------------------------------------------------------


def predicted(phase: str, layout: str, given: Profile | None, stages: int = 1, **workload: int) -> Prediction:
    on = parse_cluster("a100-80g:2x8" if stages > 1 else "tpu-v4:4x4x4").model_copy(update={"profile": given})
    mesh = parse_mesh("x=8") if stages > 1 else Mesh.of(on.shape)
    sizes = Workload(**({"prompt": 64, "output": 4, "batch": 64} | workload))
    setting = Setting(catalogue_model("palm-62b"), on, mesh, Formats(reduce="bf16"), sizes, stages)
    return predict(setting, phase, parse_layout(layout, mesh.axes))  # type: ignore[arg-type]


def step_of(found: Prediction) -> float:
    assert found.estimate is not None
    return found.estimate.step_seconds


def total_of(found: Prediction) -> float:
    assert found.estimate is not None
    return found.estimate.total_seconds


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("layout", ["ws1d/heads", "ws2d/batch", "wg-x/batch", "wg-xyz/batch", "ws2d/context"])
def test_no_estimate_is_below_its_bound(phase: str, layout: str):
    for constants in ({}, {"hidden_share": 1.0}, {"matmul_share": 0.5, "torus/share": 0.3}):
        found = predicted(phase, layout, profile(constants))
        assert step_of(found) >= found.step_seconds
        assert total_of(found) >= found.total_seconds


@pytest.mark.parametrize(
    "worse",
    [
        {"matmul_share": 0.4},
        {"half_rows": 100},
        {"memory_share": 0.1},
        {"activation_share": 8.0},
        {"torus/share": 0.2},
        {"torus/message_seconds": 1e-4},
        {"torus/hop_seconds": 1e-4},
        {"layer_seconds": 1e-4},
        {"step_seconds": 1e-2},
    ],
    ids=str,
)
def test_every_constant_makes_it_slower_the_worse_it_is(worse: dict[str, float]):
    slower, plain = (predicted("prefill", "ws2d/batch", profile(c), batch=4) for c in (worse, {}))
    assert step_of(slower) > step_of(plain)


def test_without_a_profile_there_is_none():
    found = predicted("decode", "ws2d/batch", None)
    assert found.estimate is None
    assert found.as_json()["estimate"] is None
    assert (found.mfu, found.chip_seconds_per_token) == (found.bound_mfu, found.bound_chip_seconds_per_token)


def test_a_decode_phase_is_the_sum_of_its_steps():
    given = profile({"matmul_share": 0.5, "torus/message_seconds": 1e-5, "step_seconds": 1e-3})
    whole = predicted("decode", "ws2d/batch", given, prompt=64, output=3, context=67)
    each = [predicted("decode", "ws2d/batch", given, output=1, context=64 + i) for i in (1, 2, 3)]
    assert total_of(whole) == pytest.approx(sum(map(step_of, each)), rel=1e-12)


def test_the_host_takes_its_time_once_a_chunk():
    one, two = (
        predicted("prefill", "ws1d/heads", profile({"step_seconds": s}), chunk=16, batch=4)
        for s in (0.0, 0.5)
    )
    assert total_of(two) - total_of(one) == pytest.approx(4 * 0.5)


def test_arrays_of_candidates_give_what_numbers_give():
    model, sizes, formats = catalogue_model("palm-62b"), {"x": 4, "y": 4, "z": 4}, Formats(reduce="bf16")
    mesh, on = Mesh.of((4, 4, 4)), parse_cluster("tpu-v4:4x4x4")
    peaks = Setting(model, on, mesh, formats, Workload(prompt=1, output=1, batch=1)).peaks
    assert on.profile is not None
    roles = parse_layout("ws2d/heads", mesh.axes)
    layout = resolve(roles, plan_storage(model, mesh, roles, roles), mesh, 64, 1)
    batches = np.array([64.0, 128.0, 1024.0])
    many = price_step(model, layout, sizes, formats, StepShape(batches, 1, 512))
    found = estimate(many.ledger, peaks, on.profile)
    steps, communication = np.asarray(found.step_seconds), np.asarray(found.communication_seconds)
    for i, batch in enumerate((64, 128, 1024)):
        one = price_step(model, layout, sizes, formats, StepShape(batch, 1, 512))
        alone = estimate(one.ledger, peaks, on.profile)
        assert steps[i] == pytest.approx(alone.step_seconds, rel=1e-12)
        assert communication[i] == pytest.approx(alone.communication_seconds, rel=1e-12)


# -- pipelines ------------------------------------------------------------------------------------------


def test_a_runtime_that_does_not_pad_runs_an_odd_batch_whole():
    """Two stages: an even batch is cut in two; 65 sequences go through both as one microbatch."""
    divided = profile().model_copy(update={"microbatch_tokens": 10**9})
    padded, whole = (
        {b: total_of(predicted("prefill", "ws1d/heads", p, stages=2, batch=b, prompt=256)) for b in (64, 65)}
        for p in (profile(), divided)
    )
    assert whole[64] == padded[64]
    assert whole[65] > 1.2 * padded[65]


def test_a_hop_between_stages_has_the_share_of_its_network():
    slow = profile({"network/share": 0.02, "network/message_seconds": 1e-3})
    found, plain = (predicted("decode", "ws1d/heads", p, stages=2, batch=1) for p in (slow, profile()))
    least = found.run.hop_bytes(found.run.longest) / found.setting.hop_bandwidth
    assert step_of(found) - step_of(plain) == pytest.approx(1e-3 + least * (1 / 0.02 - 1))


def test_json_says_what_the_estimate_is_made_of():
    given = profile({"layer_seconds": 1e-4, "step_seconds": 1e-3})
    found = predicted("decode", "ws2d/batch", given).as_json()["estimate"]
    assert found["profile"] == "made"
    assert found["layer_seconds"] == pytest.approx(64 * 1e-4)
    parts = ("operation_seconds", "communication_seconds", "layer_seconds", "host_seconds", "idle_seconds")
    assert sum(found[part] for part in parts) == pytest.approx(found["step_seconds"])
    assert found["idle_seconds"] == 0
    low, high = found["interval"]
    assert math.sqrt(low * high) == pytest.approx(found["step_seconds"])
