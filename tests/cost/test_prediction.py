"""A phase predicted: published figures of PaLM 540B, memory limits, padding and the JSON contract."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.cost.prediction import Prediction, Setting, predict, reshard_seconds
from partita.errors import InputError
from partita.sharding import ATTENTION_NAMES, FFN_NAMES, Mesh, parse_layout
from partita.specs import (
    Chip,
    Cluster,
    Formats,
    Model,
    PhysicalAxis,
    Workload,
    catalogue_chip,
    catalogue_model,
    parse_cluster,
)
from partita.specs.profile import Phase

CUBE, TPUS, PALM = Mesh.of((4, 4, 4)), parse_cluster("tpu-v4:4x4x4"), catalogue_model("palm-540b")
INT8 = Formats(weights="int8")
LAYOUTS = [f"{ffn}/{attention}" for ffn in FFN_NAMES for attention in ATTENTION_NAMES]
TINY = Model(
    name="tiny", layers=2, d_model=48, d_ff=96, heads=6, kv_heads=2, head_dim=8, vocabulary=130
)  # on 8 chips heads and vocabulary are padded
SMALL_MESH = Mesh.of((2, 2, 2))
LITTLE: dict[Phase, list[int]] = {"prefill": [24_000, 60_000, 150_000], "decode": [15_000, 24_000, 40_000]}
"""Bytes of memory with which TINY fits not at all, only in small batches, or well."""


def palm(
    phase: Phase, layout: str, formats: Formats, batch: int, *, output: int = 64, context: int | None = None
) -> Prediction:
    workload = Workload(prompt=2048, output=output, batch=batch, context=context)
    return predict(Setting(PALM, TPUS, CUBE, formats, workload), phase, parse_layout(layout, "xyz"))


def tiny(
    phase: Phase, layout: str, hbm_bytes: int = 2**30, mesh: Mesh = SMALL_MESH, **sizes: int
) -> Prediction:
    """TINY on eight small chips."""
    chip = Chip(name="small", peak_flops={"bf16": 1e12}, hbm_bytes=hbm_bytes, hbm_bandwidth=1e10)
    fabric = (PhysicalAxis(kind="switch", size=8, link_bandwidth=1e9),)
    workload = Workload(**{"prompt": 92, "output": 8, "batch": 4} | sizes)
    cluster = Cluster(name="small", chip=chip, fabric=fabric)
    setting = Setting(TINY, cluster, mesh, Formats(), workload)
    return predict(setting, phase, parse_layout(layout, "xyz"))


def scale_bytes(over_e: int, heads: int = 48) -> int:
    """Bytes on each of 64 chips of the float32 scales of PALM's int8 matrices, one for each output channel.

    Channels of E are split over `over_e` chips, those of heads, F and vocabulary over the others; every chip
    has the one KV head's.
    """
    others = 64 // over_e
    layer = heads * 256 // others + 2 * 256 + 2 * 18432 // over_e + 2 * 73728 // others
    return 4 * (118 * layer + 256128 // others)


# -- published figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("weights", "milliseconds"), [("int8", 7.03), ("bf16", 14.06)])
def test_the_pieces_of_a_decode_step_of_palm_540b(weights: Any, milliseconds: float):
    """Batch 64, context 2048, 64 chips. N/n and 2N/n over peaks (sections 2.1 and 4.4), 1/n of the cache."""
    found = palm("decode", "ws2d/batch", Formats(weights=weights), 64, context=2048).bound
    parameters, bytes_each = PALM.parameters, {"int8": 1, "bf16": 2}[weights]
    scales = scale_bytes(over_e=4) if weights == "int8" else 0
    read = parameters * bytes_each / 64 + scales
    assert found.weight_seconds == pytest.approx(read / 1.2e12, rel=1e-12)
    assert 1e3 * found.weight_seconds == pytest.approx(milliseconds, rel=2e-3)
    assert 1e3 * found.kv_seconds == pytest.approx(0.21, abs=0.005)
    assert found.kv_seconds == pytest.approx(2 * 118 * 256 * 2 * 2048 / 1.2e12, rel=1e-12)
    attention = 2 * 2 * 118 * 48 * 256 * 2048  # FLOPs of one token: scores and values of 48 heads
    assert found.compute_seconds == pytest.approx((2 * parameters + attention) / 275e12, rel=1e-12)
    assert 1e3 * (found.compute_seconds - attention / 275e12) == pytest.approx(3.93, abs=0.005)
    assert found.binds == "weights"


# Pope et al. 2022, Table 2: the latency of PaLM 540B on 64 chips, in seconds.
TABLE_2 = [
    ("prefill", 1, "ws2d/heads", "int8", 0.29),
    ("decode", 64, "ws2d/batch", "int8", 1.82),
    ("prefill", 512, "wg-xyz/batch", "bf16", 85.2),
    ("decode", 512, "ws2d/batch", "bf16", 6.0),
]


@pytest.mark.parametrize("reduce", ["f32", "bf16"])
@pytest.mark.parametrize(("phase", "batch", "layout", "weights", "published"), TABLE_2)
def test_the_bound_is_below_published_latencies_but_not_far(
    phase: Phase, batch: int, layout: str, weights: Any, published: float, reduce: Any
):
    found = palm(phase, layout, Formats(weights=weights, reduce=reduce), batch)
    assert published / 4 < found.total_seconds < published
    assert found.fits


def test_larger_prefills_gather_weights_over_more_chips():
    """Figure 3 and section 4.1: from two-dimensional weight-stationary to all weights gathered."""

    def best(batch: int) -> str:
        seconds = {
            name: palm("prefill", f"{name}/batch", Formats(), batch).step_seconds for name in FFN_NAMES
        }
        return min(seconds, key=lambda name: seconds[name])

    assert [best(batch) for batch in (1, 8, 64, 1024)] == ["ws2d", "wg-x", "wg-xy", "wg-xyz"]


@pytest.mark.parametrize("batch", [1, 64, 512])
def test_decode_keeps_its_weights_split_in_two_dimensions(batch: int):
    """Section 4.1: always, since a step has few tokens."""
    seconds = {name: palm("decode", f"{name}/batch", INT8, batch).step_seconds for name in FFN_NAMES}
    assert min(seconds, key=lambda name: seconds[name]) == "ws2d"


# -- time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_decode_is_the_sum_of_its_steps(layout: str):
    """Each token attends to the prompt and to all tokens up to itself."""
    whole = tiny("decode", layout, prompt=40, output=9, batch=6)
    steps = [tiny("decode", layout, prompt=40, output=9, batch=6, context=40 + i) for i in range(1, 10)]
    assert whole.total_seconds == pytest.approx(sum(step.step_seconds for step in steps), rel=1e-12)
    assert steps[0].step_seconds < steps[-1].step_seconds == whole.step_seconds


def test_a_prefill_is_one_step_of_all_prompts():
    found = tiny("prefill", "ws2d/heads", prompt=40, batch=6, prefill_batch=3)
    assert (found.batch, found.tokens_per_step) == (3, 120)
    assert found.total_seconds == found.step_seconds > 0
    decode = tiny("decode", "ws2d/heads", prompt=40, batch=6, prefill_batch=3)
    assert (decode.batch, decode.tokens_per_step) == (6, 6)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_figures_of_merit_are_those_of_the_step(phase: Phase):
    found = palm(phase, "ws2d/batch", INT8, 64)
    tokens = 64 * (2048 if phase == "prefill" else 1)
    assert found.bound_chip_seconds_per_token == pytest.approx(64 * found.step_seconds / tokens)
    ideal = found.needed_flops / (64 * 275e12)  # by hand in test_mfu.py
    assert found.bound_mfu == pytest.approx(ideal / found.step_seconds)
    assert found.estimate is not None
    assert found.chip_seconds_per_token == pytest.approx(64 * found.estimate.step_seconds / tokens)
    assert found.mfu == pytest.approx(ideal / found.estimate.step_seconds)
    assert 0 < found.mfu < found.bound_mfu < 1
    papers = 2 * PALM.parameters * tokens / (64 * 275e12)
    assert found.paper_mfu == pytest.approx(papers / found.step_seconds)


RATES = ("flops", "memory", "x", "y", "z")


@examples(20)
@given(
    layout=st.sampled_from(LAYOUTS),
    phase=st.sampled_from(("prefill", "decode")),
    rates=st.fixed_dictionaries({rate: st.floats(1e6, 1e15) for rate in RATES}),
    faster=st.fixed_dictionaries({rate: st.floats(1, 100) for rate in RATES}),
)
def test_more_bandwidth_is_never_slower(
    layout: str, phase: Phase, rates: dict[str, float], faster: dict[str, float]
):
    def seconds(rates: dict[str, float]) -> float:
        chip = Chip(
            name="any", peak_flops={"bf16": rates["flops"]}, hbm_bytes=2**30, hbm_bandwidth=rates["memory"]
        )
        fabric = tuple(PhysicalAxis(kind="network", size=2, link_bandwidth=rates[axis]) for axis in "xyz")
        cluster = Cluster(name="any", chip=chip, fabric=fabric)
        workload = Workload(prompt=20, output=3, batch=5)
        setting = Setting(TINY, cluster, SMALL_MESH, Formats(), workload)
        return predict(setting, phase, parse_layout(layout, "xyz")).total_seconds

    assert seconds({rate: rates[rate] * faster[rate] for rate in RATES}) <= seconds(rates)


def test_an_axis_of_one_chip_costs_nothing_wherever_it_stands():
    """Two replicas joined by a slow network, each in one node: weights over 8 chips, or 8 and 1."""
    chip = Chip(name="gpu", peak_flops={"bf16": 1e12}, hbm_bytes=2**30, hbm_bandwidth=1e10)
    fabric = (
        PhysicalAxis(kind="network", size=2, link_bandwidth=1e6),
        PhysicalAxis(kind="switch", size=8, link_bandwidth=1e9),
    )
    cluster, workload = (
        Cluster(name="nodes", chip=chip, fabric=fabric),
        Workload(prompt=20, output=3, batch=8),
    )

    def seconds(shape: tuple[int, ...], ffn: str, attention: str) -> float:
        setting = Setting(TINY, cluster, Mesh.of(shape), Formats(), workload)
        roles = parse_layout(f"{ffn}/{attention}", setting.mesh.axes)
        return predict(setting, "decode", roles).step_seconds

    two = seconds((2, 8), "x=replica,y=f", "x=batch,y=heads")
    assert seconds((1, 2, 8), "x=f,y=replica,z=f", "x=heads,y=batch,z=heads") == pytest.approx(two, rel=1e-12)
    assert seconds((2, 8, 1), "x=replica,y=f,z=f", "x=batch,y=heads,z=heads") == pytest.approx(two, rel=1e-12)


def test_moving_the_cache_between_phases_takes_time_only_where_it_moves():
    workload = Workload(prompt=2048, output=64, batch=64)
    setting = Setting(PALM, TPUS, CUBE, INT8, workload)
    heads, batch, context = (
        predict(setting, "prefill", parse_layout(f"ws2d/{name}", "xyz"))
        for name in ("heads", "batch", "context")
    )
    decode = predict(setting, "decode", parse_layout("ws2d/batch", "xyz"))
    assert reshard_seconds(batch, decode) == 0
    assert reshard_seconds(context, decode) > 0  # from positions to sequences
    assert reshard_seconds(heads, decode) == 0  # every chip holds the one head of all sequences: a slice
    multihead = Setting(catalogue_model("palm-540b-multihead"), TPUS, CUBE, INT8, workload)
    heads = predict(multihead, "prefill", parse_layout("ws2d/heads", "xyz"))
    decode = predict(multihead, "decode", parse_layout("ws2d/batch", "xyz"))
    assert reshard_seconds(heads, decode) > 0


# -- memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_by_part_sums_to_the_total(phase: Phase, layout: str):
    memory = palm(phase, layout, INT8, 64).memory_bytes
    parts = [memory[part] for part in ("weights", "kv", "activations", "runtime")]
    assert min(parts) > 0
    assert memory["total"] == sum(parts)
    assert memory["capacity"] == 32 * 2**30
    assert set(memory) == {"weights", "kv", "activations", "runtime", "total", "capacity"}


def test_palm_540b_holds_its_share_of_the_weights_and_the_cache():
    memory = palm("decode", "ws2d/batch", INT8, 64, context=2048).memory_bytes
    assert memory["weights"] == PALM.parameters // 64 + scale_bytes(over_e=4)
    assert memory["kv"] == 2 * 118 * 256 * 2 * 2048


@pytest.mark.parametrize(
    ("phase", "hbm_bytes"),
    [(phase, size) for phase, sizes in LITTLE.items() for size in sizes],
)
@pytest.mark.parametrize("layout", ["ws2d/batch", "ws1d/heads", "wg-x/batch", "wg-xyz/heads"])
def test_the_largest_batch_and_context_are_exactly_that(phase: Phase, layout: str, hbm_bytes: int):
    found = tiny(phase, layout, hbm_bytes)

    def fits(**sizes: int) -> bool:
        return tiny(phase, layout, hbm_bytes, SMALL_MESH, **sizes).fits

    tokens = "prompt" if phase == "prefill" else "context"
    for name, most in (("batch", found.max_batch), (tokens, found.max_context)):
        assert max((n for n in range(1, most + 40) if fits(**{name: n})), default=0) == most
        assert not any(fits(**{name: (most + 40) * 2**i}) for i in range(4))


@pytest.mark.parametrize(
    ("shape", "hbm_bytes", "fitting"),
    [((2, 2, 2), 24_000, [1, 2, 4]), ((2, 4, 1), 32_000, [1, 2, 8]), ((8, 1, 1), 40_000, [1, 8])],
    ids=str,
)
def test_the_largest_batch_may_lie_beyond_some_that_do_not_fit(
    shape: tuple[int, ...], hbm_bytes: int, fitting: list[int]
):
    """Seven sequences cannot be split over an axis of 8 and are kept whole; of 8 each chip holds one."""
    mesh = Mesh.of(shape)
    fits = [tiny("decode", "ws2d/batch", hbm_bytes, mesh, batch=batch).fits for batch in range(1, 40)]
    assert [batch for batch, held in enumerate(fits, start=1) if held] == fitting
    assert tiny("decode", "ws2d/batch", hbm_bytes, mesh).max_batch == fitting[-1]


def test_what_the_runtime_keeps_is_a_part_of_its_own():
    """XLA leaves programs 30.75 GiB of a TPU v4: no layout may have the rest."""
    found = palm("decode", "ws2d/batch", INT8, 64)
    kept = found.setting.cluster.chip.runtime_bytes
    assert found.memory_bytes["runtime"] == kept == 1.25 * 2**30
    free = TPUS.model_copy(update={"chip": TPUS.chip.model_copy(update={"runtime_bytes": 0})})
    roomy = predict(replace(found.setting, cluster=free), "decode", parse_layout("ws2d/batch", "xyz"))
    assert roomy.memory_bytes["total"] == found.memory_bytes["total"] - kept
    each = found.memory_bytes["kv"] // 64
    assert roomy.max_batch - found.max_batch == pytest.approx(kept / each, abs=64)  # 64 chips share a batch


def test_nothing_fits_a_chip_smaller_than_the_weights():
    found = tiny("decode", "ws2d/batch", 1000)
    assert not found.fits
    assert (found.max_batch, found.max_context) == (0, 0)


# -- padding --------------------------------------------------------------------------------------------


def test_padding_of_palm_540b_to_one_head_a_chip_is_reported():
    """Section 4.1: 48 heads padded to 64 add 18 billion parameters, q and o of 16 heads in 118 layers."""
    found = palm("decode", "ws1d/heads", INT8, 64)
    assert found.padding == {"heads": {"from": 48, "to": 64}}
    assert found.padded_parameters == 118 * 16 * 256 * 2 * 18432
    assert found.padded_parameters == pytest.approx(18e9, rel=0.02)
    assert found.as_json()["padding"] == found.padding | {"extra_parameters": found.padded_parameters}
    parameters = PALM.parameters + found.padded_parameters
    assert found.memory_bytes["weights"] == parameters // 64 + scale_bytes(over_e=1, heads=64)


def test_every_dim_that_is_padded_is_named():
    found = predict(
        Setting(
            Model(name="odd", layers=3, d_model=50, d_ff=99, heads=3, kv_heads=3, head_dim=8, vocabulary=101),
            parse_cluster("tpu-v4:2x2x2"),
            SMALL_MESH,
            Formats(),
            Workload(prompt=4, output=4, batch=8),
        ),
        "decode",
        parse_layout("ws1d/heads", "xyz"),
    )
    sizes = {name: (pad["from"], pad["to"]) for name, pad in found.padding.items()}
    assert sizes == {
        "heads": (3, 8),
        "kv_heads": (3, 4),
        "d_model": (50, 56),
        "d_ff": (99, 104),
        "vocabulary": (101, 104),
    }
    larger = 3 * (2 * 56 * 8 * (8 + 4) + 3 * 56 * 104 + 2 * 56) + 104 * 56 + 56
    assert found.padded_parameters == larger - found.setting.model.parameters


def test_nothing_is_padded_where_all_divides():
    assert palm("decode", "ws2d/batch", INT8, 64).padding == {}


# -- the JSON contract ----------------------------------------------------------------------------------

KEYS = {
    *("schema", "model", "cluster", "chips", "phase", "batch", "tokens_per_step", "context"),
    *("steps", "workload", "pipeline", "weights", "kv", "layout", "bound", "estimate", "mfu"),
    *("chip_seconds_per_token", "flops", "memory_bytes_per_chip", "max_context", "max_batch"),
    *("collectives", "binds"),
}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_json_form_has_every_key_of_the_contract(phase: Phase, layout: str):
    found = palm(phase, layout, INT8, 64)
    read = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert set(read) >= KEYS
    assert set(read["layout"]) >= {"ffn", "attention", "mesh", "roles"}
    assert set(read["bound"]) >= {"step_seconds", "total_seconds"}
    memory = {"weights", "kv", "activations", "runtime", "total", "capacity"}
    assert set(read["memory_bytes_per_chip"]) == memory
    keys = {"kind", "axes", "bytes", "messages"}
    assert {frozenset(each) for each in read["collectives"]} == {frozenset(keys)}
    what = ("partita.prediction/1", "palm-540b", "tpu-v4:4x4x4", 64)
    assert (read["schema"], read["model"], read["cluster"], read["chips"]) == what
    assert (read["phase"], read["batch"], read["weights"], read["kv"]) == (phase, 64, "int8", "bf16")
    assert (read["tokens_per_step"], read["context"]) == (
        (64 * 2048, 2048) if phase == "prefill" else (64, 2112)
    )
    assert "/".join((read["layout"]["ffn"], read["layout"]["attention"])) == layout
    assert read["layout"]["mesh"] == {"x": 4, "y": 4, "z": 4}
    assert list(read["layout"]["roles"]) == ["x", "y", "z"]


def test_the_json_form_holds_the_figures_of_the_prediction():
    found = palm("decode", "ws2d/batch", INT8, 64)
    read = found.as_json()
    assert read["bound"]["step_seconds"] == found.step_seconds
    assert read["bound"]["total_seconds"] == found.total_seconds
    limits = read["bound"]
    assert limits["step_seconds"] == pytest.approx(
        max(limits["compute_seconds"], limits["memory_seconds"]) + limits["communication_seconds"]
    )
    sent = sum(collective["bytes"] for collective in read["collectives"])
    assert sent / 270e9 == pytest.approx(limits["communication_seconds"])
    assert read["memory_bytes_per_chip"] == found.memory_bytes
    assert (read["max_batch"], read["max_context"]) == (found.max_batch, found.max_context)
    assert read["binds"] == found.bound.binds
    assert read["flops"] == pytest.approx(2 * (PALM.parameters + 2 * 118 * 48 * 256 * 2112))


# -- mistakes -------------------------------------------------------------------------------------------


def test_a_mesh_of_another_size_than_the_cluster_is_refused():
    setting = Setting(PALM, TPUS, Mesh.of((4, 4, 2)), INT8, Workload(prompt=1, output=1, batch=1))
    with pytest.raises(InputError, match=r"^mesh: x=4,y=4,z=2: has 32 chips; .*tpu-v4:4x4x4, 64$"):
        predict(setting, "decode", parse_layout("ws2d/batch", "xyz"))


def test_activations_the_chip_has_no_figure_for_are_refused():
    formats = Formats(activations="f32")
    setting = Setting(PALM, TPUS, CUBE, formats, Workload(prompt=1, output=1, batch=1))
    with pytest.raises(InputError, match=r"^activations: f32: tpu-v4 has no peak"):
        predict(setting, "decode", parse_layout("ws2d/batch", "xyz"))


def test_one_chip_sends_nothing():
    setting = Setting(
        catalogue_model("smollm2-135m"),
        Cluster(
            name="one",
            chip=catalogue_chip("tpu-v4"),
            fabric=(PhysicalAxis(kind="torus", size=1, links=2, link_bandwidth=45e9),),
        ),
        Mesh.of((1,)),
        Formats(),
        Workload(prompt=100, output=10, batch=3),
    )
    found = predict(setting, "decode", parse_layout("ws2d/batch", "x"))
    assert found.bound.communication_seconds == 0
    assert found.padding == {}
    assert math.isfinite(found.total_seconds)
    assert all(c["bytes"] == 0 for c in found.as_json()["collectives"])
