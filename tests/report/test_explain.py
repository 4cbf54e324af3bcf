"""`explain`'s rows: their times, bytes and FLOPs are the step's; and the page that shows them."""

import json
from collections import Counter
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from partita.cost.prediction import Prediction, Setting, predict
from partita.report.explain import explanation, operations
from partita.report.predictions import NO_PROFILE, step_text
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.sharding.spec import parse
from partita.specs import Formats, Workload, catalogue_model, format_seconds, parse_cluster
from partita.specs.profile import Constant, Phase, Profile

LAYOUTS = ["ws1d/heads", "ws2d/batch", "wg-x/heads", "wg-xyz/batch", "x=e,y=f-gathered,z=replica/heads"]


def prediction(
    phase: Phase, layout: str, batch: int, model: str = "palm-540b", shape: str = "4x4x4", prompt: int = 2048
) -> Prediction:
    cluster = parse_cluster(f"tpu-v4:{shape}")
    workload = Workload(prompt=prompt, output=64, batch=batch)
    setting = Setting(catalogue_model(model), cluster, Mesh.of(cluster.shape), Formats(), workload)
    return predict(setting, phase, parse_layout(layout, "xyz"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("phase", "batch", "model", "shape"),
    [
        ("prefill", 512, "palm-540b", "4x4x4"),  # limited by compute
        ("decode", 64, "palm-540b", "4x4x4"),  # limited by memory
        ("decode", 5, "smollm2-135m", "2x2x2"),  # padded, grouped-query, tied embedding
        ("prefill", 1, "palm-8b", "1x1x1"),  # nothing is sent
    ],
)
def test_the_times_add_up_to_the_steps_bound(layout: str, phase: Phase, batch: int, model: str, shape: str):
    found = prediction(phase, layout, batch, model, shape)
    rows = operations(found)
    assert sum(row["bound_seconds"] for row in rows) == pytest.approx(found.step_seconds, rel=1e-9)
    assert sum(row["share"] for row in rows) == pytest.approx(1, rel=1e-9)
    for row in rows:
        assert row["share"] == pytest.approx(row["bound_seconds"] / found.step_seconds)
        assert row["bound_seconds"] >= 0


@pytest.mark.parametrize(
    ("phase", "batch", "model", "cluster", "stages", "layout"),
    [
        ("prefill", 512, "palm-540b", "tpu-v4:4x4x4", 1, "wg-xyz/batch"),
        ("decode", 64, "palm-540b", "tpu-v4:4x4x4", 1, "ws2d/batch"),  # communication the most of it
        ("decode", 8, "llama-3-8b", "h100:1x8", 1, "ws1d/heads"),  # time by layer
        ("decode", 4, "llama-3-70b", "tpu-v5e:4x4", 1, "ws1d/heads"),
        ("decode", 24, "mt-nlg-530b", "a100-80g:3x8", 3, "ws1d/heads"),
        ("decode", 256, "mt-nlg-530b", "a100-80g:3x8", 3, "ws1d/heads"),  # cut in one by the runtime
        ("prefill", 1, "mt-nlg-530b", "a100-80g:3x8", 3, "ws1d/heads"),
    ],
)
def test_the_estimated_times_add_up_to_the_estimated_step(
    phase: Phase, batch: int, model: str, cluster: str, stages: int, layout: str
):
    on, workload = parse_cluster(cluster), Workload(prompt=20, output=8, batch=batch)
    mesh = Mesh.of(on.shape if stages == 1 else (1, 8))
    setting = Setting(catalogue_model(model), on, mesh, Formats(), workload, stages)
    found = predict(setting, phase, parse_layout(layout, mesh.axes))
    rows = operations(found)
    assert found.estimate is not None
    seconds = {(row["scope"], row["op"]): row["estimated_seconds"] for row in rows}
    assert sum(row["estimated_seconds"] for row in rows) == pytest.approx(
        found.estimate.step_seconds, rel=1e-9
    )
    assert min(row["estimated_seconds"] for row in rows) >= 0
    if model == "llama-3-8b":
        assert seconds["layer", "time that no count explains"] == pytest.approx(
            32
            * (
                found.estimate.profile.value("layer_seconds")
                + 8 * found.estimate.profile.value("sequence_seconds")
            )
        )
    console = Console(width=300, record=True, file=StringIO())
    console.print(explanation(found))
    text = console.export_text()
    assert f"estimated {step_text(found.estimate)}" in text
    assert "FLOPs" in text
    assert all(format_seconds(row["estimated_seconds"]) in text for row in rows)


def test_a_matmul_takes_its_share_of_the_peak_and_hidden_bytes_take_nothing():
    """Half of the bytes hidden, all at half of the peak: matmuls take twice their bound, collectives it."""
    constants = {"matmul_share": 0.5, "memory_share": 0.5, "hidden_share": 0.5, "torus/share": 0.5}
    profile = Profile(
        name="half",
        source="made for this test",
        constants={name: Constant(value=value, fixed="a test's") for name, value in constants.items()},
    )
    plain = prediction("prefill", "wg-xyz/batch", 512)
    cluster = plain.setting.cluster.model_copy(update={"profile": profile})
    found = predict(replace(plain.setting, cluster=cluster), "prefill", plain.layout.roles)
    for row in operations(found):
        if row["op"] == "BLE,EMF->BLMF":
            assert row["estimated_seconds"] == pytest.approx(2 * row["bound_seconds"])
        if row["axes"] == "xyz":  # all links of the chip
            assert row["estimated_seconds"] == pytest.approx(row["bound_seconds"])


def test_without_a_profile_there_is_no_column_of_estimates():
    on = parse_cluster("tpu-v5p:2x2x2")
    setting = Setting(
        catalogue_model("palm-8b"), on, Mesh.of(on.shape), Formats(), Workload(prompt=64, output=8, batch=8)
    )
    found = predict(setting, "decode", parse_layout("ws2d/batch", "xyz"))
    assert {row["estimated_seconds"] for row in operations(found)} == {None}
    console = Console(width=300, record=True, file=StringIO())
    console.print(explanation(found))
    text = console.export_text()
    assert "estimated" not in text
    assert NO_PROFILE in text


@pytest.mark.parametrize(("batch", "phase"), [(1, "decode"), (3, "decode"), (1, "prefill"), (64, "prefill")])
def test_what_a_stage_waits_is_a_row_of_its_own(batch: int, phase: Phase):
    on, workload = parse_cluster("a100-80g:3x8"), Workload(prompt=20, output=8, batch=batch)
    setting = Setting(catalogue_model("mt-nlg-530b"), on, Mesh.of((1, 8)), Formats(), workload, 3)
    found = predict(setting, phase, parse_layout("ws1d/heads", "xy"))
    rows = operations(found)
    assert sum(row["bound_seconds"] for row in rows) == pytest.approx(found.step_seconds, rel=1e-9)
    wait = rows[-1]
    assert (wait["scope"], wait["op"], wait["flops"]) == ("pipeline", "wait", 0)
    assert wait["bound_seconds"] == found.idle_seconds
    assert (found.idle_seconds > 0) == (batch != 3)  # three microbatches keep the longest stage busy
    console = Console(width=200, record=True, file=StringIO())
    console.print(explanation(found))
    assert "pipeline: wait" in console.export_text()


def test_chunks_are_explained_by_their_longest():
    on, workload = (
        parse_cluster("tpu-v4:4x4x4"),
        Workload(prompt=2048, output=8, batch=1, prefix=100, chunk=500),
    )
    setting = Setting(catalogue_model("palm-540b"), on, Mesh.of((4, 4, 4)), Formats(), workload)
    found = predict(setting, "prefill", parse_layout("ws2d/heads", "xyz"))
    rows = json.loads(json.dumps(operations(found)))
    assert sum(row["bound_seconds"] for row in rows) == pytest.approx(found.step_seconds, rel=1e-9)
    assert sum(row["memory_bytes"] for row in rows if "attend" in row["scope"]) > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_counts_add_up_to_the_predictions(layout: str, phase: Phase):
    found = prediction(phase, layout, 64)
    rows, written = operations(found), found.as_json()
    assert sum(row["flops"] for row in rows) == pytest.approx(written["flops"], rel=1e-12)
    sent, messages = Counter(), Counter()
    for row in rows:
        if row["axes"]:
            sent[row["kind"], row["axes"]] += row["sent_bytes"]
            messages[row["kind"], row["axes"]] += row["messages"]
        else:
            assert row["sent_bytes"] == row["messages"] == 0
    collectives = {(c["kind"], c["axes"]): c for c in written["collectives"]}
    assert sent == pytest.approx({key: c["bytes"] for key, c in collectives.items()}, rel=1e-12)
    assert messages == {key: c["messages"] for key, c in collectives.items()}


def test_memory_read_is_the_weights_and_the_cache():
    """2 bytes a parameter over 64 chips and the cache of 64 sequences, read once a step."""
    found = prediction("decode", "ws2d/batch", 64)
    read = sum(row["memory_bytes"] for row in operations(found))
    model = found.setting.model
    cache = 2 * 2 * model.layers * model.head_dim * (2048 + 64)  # one sequence a chip
    assert read == pytest.approx(2 * model.parameters / 64 + cache, rel=1e-3)


def test_the_feed_forward_block_of_2d_weight_stationary_is_the_papers_figure():
    """Section 3.2.1, figure 2: gather and scatter over yz outside the block, over x inside it."""
    rows = operations(prediction("decode", "ws2d/batch", 64))
    ffn = [row for row in rows if "/ffn" in row["scope"]]
    assert [(row["kind"], row["axes"], row["before"][0], row["after"]) for row in ffn] == [
        ("einsum", "", "B L E_x", "B L M F_yz partialsum-x"),
        ("reduce-scatter", "x", "B L M F_yz partialsum-x", "B L M F_yzx"),
        ("all-gather", "x", "B L F_yzx", "B L F_yz"),
        ("einsum", "", "B L F_yz", "B L E_x partialsum-yz"),
        ("reduce-scatter", "yz", "B L E_x partialsum-yz", "B L E_xyz"),
    ]
    gather = next(row for row in rows if row["scope"] == "layer/gather")
    assert (gather["kind"], gather["axes"], gather["after"]) == ("all-gather", "yz", "B L E_x")
    assert {row["repeat"] for row in [gather, *ffn]} == {118}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_sharding_is_in_the_papers_notation(layout: str):
    for row in operations(prediction("prefill", layout, 64)):
        for text in (*row["before"], row["after"]):
            assert str(parse(text)) == text


def test_the_page_shows_a_line_for_every_operation_and_where_weights_are_stored():
    found = prediction("prefill", "wg-xyz/batch", 512)
    console = Console(width=300, record=True, file=StringIO())
    console.print(explanation(found))
    text = console.export_text()
    rows = operations(found)
    for row in rows:
        assert f"{row['scope']}: {row['op']}" in text
        assert f"{', '.join(row['before'])} -> {row['after']}" in text
    head, stored, *_ = text.splitlines()
    assert head.startswith(
        "palm-540b on tpu-v4:4x4x4, mesh x=4,y=4,z=4, prefill in wg-xyz/batch: 512 sequences"
    )
    assert stored.startswith("weights stored as ")
    assert "partialsum" in text
