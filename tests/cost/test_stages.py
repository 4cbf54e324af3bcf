"""Pipeline stages: which layers where, what a step takes and a chip holds, published latencies."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.cost.prediction import Prediction, Setting, predict, reshard_seconds
from partita.cost.roofline import bound
from partita.cost.schedule import StageLayers, split_layers
from partita.cost.setting import stage_of
from partita.errors import InputError
from partita.sharding import Mesh, parse_layout
from partita.specs import (
    Chip,
    Cluster,
    Formats,
    Model,
    PhysicalAxis,
    Workload,
    catalogue_model,
    parse_cluster,
)
from partita.specs.profile import Phase

CHIP = Chip(name="gpu", peak_flops={"bf16": 1e12}, hbm_bytes=2**30, hbm_bandwidth=1e10)
TINY = Model(name="tiny", layers=6, d_model=48, d_ff=96, heads=6, kv_heads=2, head_dim=8, vocabulary=130)
HYBRID = TINY.model_copy(update={"layers": 17, "window": 10, "global_period": 6})


def nodes(count: int, inside: int = 2, network: float = 1e8) -> Cluster:
    fabric = (
        PhysicalAxis(kind="network", size=count, link_bandwidth=network),
        PhysicalAxis(kind="switch", size=inside, link_bandwidth=1e9),
    )
    return Cluster(name=f"nodes:{count}x{inside}", chip=CHIP, fabric=fabric)


def staged(
    stages: int, phase: Phase, model: Model = TINY, cluster: Cluster | None = None, **sizes: Any
) -> Prediction:
    on = cluster or nodes(stages)
    workload = Workload(**({"prompt": 20, "output": 3, "batch": 6} | sizes))
    mesh = Mesh.of(stage_of(on, stages).shape)
    setting = Setting(model, on, mesh, Formats(), workload, stages)
    return predict(setting, phase, parse_layout("ws1d/heads", mesh.axes))


# -- layers ---------------------------------------------------------------------------------------------


@given(layers=st.integers(1, 130), data=st.data(), window=st.booleans(), period=st.integers(1, 12))
def test_every_layer_is_in_one_stage_and_stages_differ_by_one(
    layers: int, data: st.DataObject, window: bool, period: int
):
    model = TINY.model_copy(
        update={"layers": layers} | ({"window": 4, "global_period": period} if window else {})
    )
    stages = data.draw(st.integers(1, layers))
    parts = split_layers(model, stages)
    counts = [part.layers for part in parts]
    assert (len(parts), sum(counts)) == (stages, layers)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
    assert [part.embeds for part in parts] == [True] + [False] * (stages - 1)
    assert [part.unembeds for part in parts] == [False] * (stages - 1) + [True]
    kinds = ["global" if not window or (i + 1) % period == 0 else "local" for i in range(layers)]
    for part in parts:
        mine, kinds = kinds[: part.layers], kinds[part.layers :]
        assert (part.global_layers, part.local_layers) == (mine.count("global"), mine.count("local"))
    assert sum(part.global_layers for part in parts) == model.global_layers


@pytest.mark.parametrize("stages", [0, -1, 7, 100])
def test_there_is_a_layer_for_every_stage(stages: int):
    with pytest.raises(InputError, match="tiny has 6 layers; 1 to 6 stages are accepted") as caught:
        split_layers(TINY, stages)
    assert (caught.value.field, caught.value.value) == ("stages", stages)


# -- chips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "stages", "shape"),
    [
        ("a100-80g:3x8", 3, (1, 8)),
        ("h100:8x8", 2, (4, 8)),
        ("h100:1x8", 4, (1, 2)),
        ("tpu-v4:4x4x4", 2, (2, 4, 4)),
        ("tpu-v4:4x4x4", 1, (4, 4, 4)),
    ],
)
def test_stages_share_out_the_slowest_axis(cluster: str, stages: int, shape: tuple[int, ...]):
    assert stage_of(parse_cluster(cluster), stages).shape == shape


@pytest.mark.parametrize("stages", [2, 8, 0, -3, True, 1.5, "3"])
def test_stages_divide_the_slowest_axis(stages: Any):
    with pytest.raises(
        InputError, match="divides the slowest axis of a100-80g:3x8, 3 groups of 8 chips"
    ) as caught:
        stage_of(parse_cluster("a100-80g:3x8"), stages)
    assert (caught.value.field, caught.value.value) == ("stages", stages)


def test_a_mesh_is_that_of_one_stage():
    setting = Setting(TINY, nodes(2), Mesh.of((2, 2)), Formats(), Workload(prompt=4, output=1, batch=1), 2)
    with pytest.raises(InputError, match="has 4 chips; its size must be that of a stage of nodes:2x2, 2"):
        predict(setting, "decode", parse_layout("ws1d/heads", "xy"))


# -- time -----------------------------------------------------------------------------------------------


def test_even_stages_have_the_closed_form():
    """Six layers over three nodes: the middle stage is a third of the layers and nothing else."""
    for batch, count in ((6, 3), (1, 1), (2, 2)):
        decode = staged(3, "decode", batch=batch)
        work, turn = decode.run, decode.run.longest
        first, middle, last = (float(t) for t in work.stage_seconds(turn))
        assert work.microbatches == (count, batch // count)
        assert middle < first < last  # embedding sums over chips, unembedding reads its table too
        hop = work.hop_bytes(turn) / 1e8
        assert work.hop_bytes(turn) == batch // count * 48 * 2 / 2  # bf16, over the two chips of a stage
        passing = first + middle + last + 2 * hop
        assert decode.step_seconds == pytest.approx(max(count * last, passing))
        prefill = staged(3, "prefill", batch=batch)
        times = [float(t) for t in prefill.run.stage_seconds(prefill.run.longest)]
        hop = prefill.run.hop_bytes(prefill.run.longest) / 1e8
        assert prefill.total_seconds == prefill.step_seconds
        assert prefill.total_seconds == pytest.approx(sum(times) + 2 * hop + (count - 1) * max(*times, hop))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_stages_of_one_sequence_add_up_to_the_model(phase: Phase):
    """What each of three nodes takes for its part is what one takes for everything, part by part."""
    parts = staged(3, phase, batch=1).run
    bounds = [
        bound(parts._step(parts.longest, part).ledger, parts.setting.peaks) for part in parts.setting.parts
    ]
    alone = staged(1, phase, cluster=nodes(1), batch=1).bound
    for column in ("compute_seconds", "weight_seconds", "kv_seconds", "communication_seconds"):
        assert sum(float(getattr(each, column)) for each in bounds) == pytest.approx(getattr(alone, column))


@examples(10)
@given(
    phase=st.sampled_from(("prefill", "decode")),
    stages=st.integers(2, 6),
    layers=st.integers(1, 20),
    tied=st.booleans(),
    hybrid=st.booleans(),
    prompt=st.integers(1, 60),
    network=st.sampled_from((1e6, 1e8, 1e12)),
)
def test_more_stages_do_not_make_one_sequence_faster(
    phase: Phase, stages: int, layers: int, tied: bool, hybrid: bool, prompt: int, network: float
):
    assume(stages <= layers)
    model = (HYBRID if hybrid else TINY).model_copy(update={"layers": layers, "tied_embedding": tied})
    alone = staged(1, phase, model, nodes(1), batch=1, prompt=prompt)
    more = staged(stages, phase, model, nodes(stages, network=network), batch=1, prompt=prompt)
    assert more.total_seconds >= alone.total_seconds * (1 - 1e-12)
    assert more.step_seconds >= float(more.bound.step_seconds)
    assert more.idle_seconds == pytest.approx(more.step_seconds - float(more.bound.step_seconds))


def test_a_decode_is_the_sum_of_its_steps_in_stages_too():
    whole = staged(3, "decode", batch=5, prompt=30, output=4)
    steps = [staged(3, "decode", batch=5, context=30 + i) for i in range(1, 5)]
    assert whole.total_seconds == pytest.approx(sum(step.step_seconds for step in steps), rel=1e-12)


def test_flops_and_collectives_are_those_of_all_microbatches():
    """The figures of a chip in the longest stage: three microbatches of two, two layers and the head each."""
    found = staged(3, "decode", batch=6, context=30)
    alone = staged(1, "decode", TINY.model_copy(update={"layers": 2}), nodes(1), batch=2, context=30)
    assert found.as_json()["flops"] == 3 * alone.as_json()["flops"]
    ours, theirs = found.step.ledger.collectives(), alone.step.ledger.collectives()
    embedded = {e for e in alone.step.ledger.entries if e.scope == "embed" and e.axes}
    for key, (sent, messages) in ours.items():
        own = [e for e in embedded if (e.kind, e.axes) == key]  # the last stage does not embed
        assert sent == 3 * (theirs[key][0] - sum(e.sent_bytes for e in own))
        assert messages == 3 * (theirs[key][1] - sum(e.messages for e in own))


# -- memory ---------------------------------------------------------------------------------------------


def test_a_chip_holds_its_stage_and_the_cache_of_all_sequences():
    found = staged(3, "decode", batch=6, context=30)
    memory = found.memory_bytes
    assert memory["kv"] == 6 * 30 * 2 * (2 * 2 * 8) * 2 // 2  # 2 layers, bf16, KV heads over 2 chips
    table, layer = 130 * 48 * 2 // 2, (2 * 48 * 8 * (6 + 2) + 3 * 48 * 96) * 2 // 2
    norms = 48 * 4
    assert memory["weights"] == table + 2 * (layer + 2 * norms) + norms  # the last stage, tied table
    untied = staged(3, "decode", TINY.model_copy(update={"tied_embedding": False}), batch=6, context=30)
    assert untied.memory_bytes["weights"] == memory["weights"]
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "activations", "runtime"))


def test_the_stage_that_holds_most_decides_what_fits():
    """Every sixth of 17 layers is global: the two middle stages have one each, and so the larger caches."""
    found = staged(4, "decode", HYBRID, batch=8, context=200)
    ends, middle = (
        (StageLayers(0, 5, unembeds=False), StageLayers(0, 4, embeds=False)),
        StageLayers(1, 3, False, False),
    )
    assert found.setting.parts == (ends[0], middle, middle, ends[1])
    positions = 200 + 3 * 10  # of one layer all, of three their window
    assert found.memory_bytes["kv"] == 8 * positions * (2 * 2 * 8) * 2 // 2
    seconds = [float(t) for t in found.run.stage_seconds(found.run.longest)]
    assert max(seconds) == seconds[0]  # five layers and the embedding take longest, and hold less


@pytest.mark.parametrize("hbm_bytes", [60_000, 120_000, 400_000])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_largest_batch_and_context_are_exactly_that(phase: Phase, hbm_bytes: int):
    small = nodes(3).model_copy(update={"chip": CHIP.model_copy(update={"hbm_bytes": hbm_bytes})})
    found = staged(3, phase, cluster=small)
    tokens = "prompt" if phase == "prefill" else "context"
    for name, most in (("batch", found.max_batch), (tokens, found.max_context)):
        sizes = [{name: n} for n in range(1, most + 30)]
        fits = [size[name] for size in sizes if staged(3, phase, TINY, small, **size).fits]
        assert max(fits, default=0) == most


# -- between the phases, and published ------------------------------------------------------------------


def test_each_stage_moves_its_own_cache_between_the_phases():
    heads, batch = (parse_layout(f"x=f,y=f/x={how},y={how}", "xy") for how in ("heads", "batch"))
    for stages, layers in ((1, 6), (3, 2)):
        model = TINY.model_copy(update={"layers": layers})
        alone = Setting(model, nodes(1), Mesh.of((1, 2)), Formats(), Workload(prompt=20, output=3, batch=6))
        both = replace(alone, model=TINY, cluster=nodes(stages), stages=stages)
        expected = reshard_seconds(predict(alone, "prefill", batch), predict(alone, "decode", heads))
        found = reshard_seconds(predict(both, "prefill", batch), predict(both, "decode", heads))
        assert found == pytest.approx(expected)
        assert found > 0


# NVIDIA FasterTransformer: Megatron-Turing NLG 530B in FP16, three stages of eight A100 80GB, 20 input and 8
# output tokens, in ms, as Pope et al. 2022 (arXiv 2211.05102) compare with it in Table D.2 (PP3/TP8).
PP3_TP8 = {1: 842, 2: 860, 4: 867, 8: 929, 16: 1049, 32: 1283, 64: 1722, 128: 2124, 256: 3140}


@pytest.mark.parametrize(("batch", "milliseconds"), PP3_TP8.items())
def test_fastertransformer_in_three_stages_is_slower_than_the_bound(batch: int, milliseconds: float):
    on, workload = parse_cluster("a100-80g:3x8"), Workload(prompt=20, output=8, batch=batch)
    setting = Setting(catalogue_model("mt-nlg-530b"), on, Mesh.of((1, 8)), Formats(), workload, 3)
    roles = parse_layout("ws1d/heads", "xy")
    phases = [predict(setting, "prefill", roles), predict(setting, "decode", roles)]
    total = 1e3 * sum(phase.total_seconds for phase in phases)
    assert 0.45 * milliseconds < total < milliseconds
    assert all(phase.fits for phase in phases)
