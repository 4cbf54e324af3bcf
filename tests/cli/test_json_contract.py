"""`--json`: one object with the documented keys, on every command that runs no model."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Partita

from partita.specs import model_names

PALM = ("palm-540b", "--on", "tpu-v4:4x4x4")
PREDICT = ("predict", *PALM, "--phase", "decode", "--mesh", "x=4,y=4,z=4", "--ffn", "ws2d")
NUMBER = (int, float)
COLLECTIVES = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"}
PARTS = ("operation_seconds", "communication_seconds", "layer_seconds", "host_seconds", "idle_seconds")


def check_prediction(found: dict[str, Any], phase: str) -> None:
    """Every key of `partita.prediction/1`, and what its values are."""
    assert found["schema"] == "partita.prediction/1"
    kinds: dict[str, Any] = {
        "model": str,
        "cluster": str,
        "chips": int,
        "phase": str,
        "batch": int,
        "tokens_per_step": int,
        "context": int,
        "weights": str,
        "kv": str,
        "layout": dict,
        "bound": dict,
        "mfu": float,
        "chip_seconds_per_token": float,
        "flops": NUMBER,
        "steps": int,
        "workload": dict,
        "pipeline": dict,
        "memory_bytes_per_chip": dict,
        "max_context": int,
        "max_batch": int,
        "collectives": list,
        "binds": str,
    }
    for key, kind in kinds.items():
        assert isinstance(found[key], kind), key
    check_estimate(found)
    assert found["phase"] == phase
    assert {"ffn", "attention", "mesh", "roles"} <= found["layout"].keys()
    assert found["layout"]["roles"].keys() == found["layout"]["mesh"].keys()
    assert found["bound"]["total_seconds"] >= found["bound"]["step_seconds"] > 0
    memory = found["memory_bytes_per_chip"]
    parts = ("weights", "kv", "activations", "runtime")
    assert memory["total"] == sum(memory[part] for part in parts) <= memory["capacity"]
    for collective in found["collectives"]:
        assert collective.keys() >= {"kind", "axes", "bytes", "messages"}
        assert collective["kind"] in COLLECTIVES
        assert set(collective["axes"]) <= found["layout"]["mesh"].keys()


def check_estimate(found: dict[str, Any]) -> None:
    """Above the bound, in its interval, and what MFU and cost are made of."""
    estimate, tokens = found["estimate"], found["tokens_per_step"]
    assert estimate["profile"] == "tpu-v4"
    assert estimate["step_seconds"] >= found["bound"]["step_seconds"]
    assert estimate["total_seconds"] >= found["bound"]["total_seconds"]
    for whole, around in (("step_seconds", "interval"), ("total_seconds", "total_interval")):
        low, high = estimate[around]
        assert 0 < low < estimate[whole] < high
    parts = [estimate[part] for part in PARTS]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(estimate["step_seconds"])
    assert estimate["interval"][0] >= found["bound"]["step_seconds"]
    assert estimate["total_interval"][0] >= found["bound"]["total_seconds"]
    assert all(isinstance(sentence, str) for sentence in estimate["extrapolated"])
    cost = found["chips"] * estimate["step_seconds"] / tokens
    assert found["chip_seconds_per_token"] == pytest.approx(cost)


# What one decode step of PaLM 540B moves and holds on a chip of 64 in 2D weight-stationary, by hand from the
# sizes that Pope et al. 2022 give: 118 layers, d_model 18432, d_ff 73728, 48 heads of 256 with one key and
# value, a vocabulary of 256128. Mesh 4 x 4 x 4: E over x, heads, F and vocabulary over yz; 64 sequences of
# 2048 tokens, one each on a chip in attention. Weights in int8, activations and cache in bfloat16, sums in
# float32.
LAYERS, E, F, HEADS, D, VOCABULARY = 118, 18432, 73728, 48, 256, 256128
MATRICES = LAYERS * (2 * E * HEADS * D + 2 * E * D + 3 * E * F) + VOCABULARY * E
SCALES = LAYERS * (HEADS * D // 16 + 2 * D + 2 * E // 4 + 2 * F // 16) + VOCABULARY // 16
"""One for each output channel that a chip has."""
BY_HAND = {
    "weights": MATRICES // 64 + 4 * SCALES,
    "kv": LAYERS * 2 * D * 2 * 2048,
    # each token multiplies every matrix, and its queries all keys and values
    "flops": 2 * MATRICES + LAYERS * 4 * HEADS * D * 2048,
}
COLLECTIVES_BY_HAND = {
    # residuals of 64 tokens, E/4 of each: gathered in bfloat16 before every block and the logits, summed in
    # float32 after every block; the embedding is looked up in bfloat16
    ("all-gather", "yz"): (119, 119 * 64 * E // 4 * 2 * 15 // 16),
    ("reduce-scatter", "yz"): (119, (118 * 4 + 2) * 64 * E // 4 * 15 // 16),
    # sums over x of both feed-forward inputs, of the queries and of the logits
    ("reduce-scatter", "x"): (237, (118 * (2 * F + HEADS * D) + VOCABULARY) * 64 // 16 * 4 * 3 // 4),
    # the one key and value of every sequence go to the chip that attends to it
    ("reduce-scatter", "xyz"): (118, 118 * 64 * 2 * D * 4 * 63 // 64),
    # F of the gated product and the heads of what attention found, back over x
    ("all-gather", "x"): (236, 118 * (F + HEADS * D) * 64 // 64 * 2 * 3),
    # heads for sequences and back: 16 chips, the 16 sequences of an x each
    ("all-to-all", "yz"): (236, 118 * 2 * 64 * HEADS * D // 64 * 2 * 15 // 16),
    # a sum of squares of each token before each block and the logits
    ("all-reduce", "xyz"): (119, 119 * 64 * 4 * 2 * 63 // 64),
    # the likeliest token of each part of the vocabulary, and its logit
    ("all-gather", "yzx"): (1, 64 * 2 * 4 * 63),
}


def test_the_figures_of_a_prediction_are_those_worked_out_by_hand(partita: Partita):
    options = ("--attention", "batch", "--batch", 64, "--context", 2048, "--weights", "int8", "--json")
    found = partita(*PREDICT, *options).json
    memory, bound = found["memory_bytes_per_chip"], found["bound"]
    assert MATRICES == 540_356_640_768
    assert (memory["weights"], memory["kv"], found["flops"]) == tuple(BY_HAND.values())
    assert memory["capacity"] == 32 * 2**30
    moved = {(each["kind"], each["axes"]): (each["messages"], each["bytes"]) for each in found["collectives"]}
    assert moved == COLLECTIVES_BY_HAND
    # TPU v4: 275 TFLOP/s, 1.2 TB/s and links of 270 GB/s
    seconds = {
        "compute_seconds": BY_HAND["flops"] / 275e12,
        "memory_seconds": (BY_HAND["weights"] + BY_HAND["kv"]) / 1.2e12,
        "communication_seconds": sum(sent for _, sent in COLLECTIVES_BY_HAND.values()) / 270e9,
    }
    assert {key: bound[key] for key in seconds} == pytest.approx(seconds, rel=1e-12)
    step = seconds["memory_seconds"] + seconds["communication_seconds"]
    assert bound["step_seconds"] == pytest.approx(step, rel=1e-12)
    assert 64 * step < bound["total_seconds"] < 64 * step * 1.01  # 64 steps, the cache a little larger
    # one sequence for each chip, and nothing padded or computed twice
    assert found["needed_flops"] == 64 * BY_HAND["flops"]
    assert found["estimate"]["step_seconds"] * found["mfu"] == pytest.approx(BY_HAND["flops"] / 275e12)
    assert bound["step_seconds"] * found["paper_mfu"] == pytest.approx(2 * MATRICES / 275e12)


def test_the_estimates_of_a_plan_hold_what_was_measured(partita: Partita):
    """Pope et al. 2022, Table 2, low latency: a prompt of 2048 in 0.29 s, then 64 tokens for each of 64
    sequences in 1.82 s."""
    measured = {("prefill", 1, "ws2d/heads"): 0.29, ("decode", 64, "ws2d/batch"): 1.82}
    for (phase, batch, layout), seconds in measured.items():
        ffn, attention = layout.split("/")
        sizes = ("--batch", batch, "--prompt", 2048, "--output", 64, "--weights", "int8")
        command = ("predict", *PALM, "--phase", phase, "--mesh", "x=4,y=4,z=4", "--ffn", ffn)
        found = partita(*command, "--attention", attention, *sizes, "--json").json
        low, high = found["estimate"]["total_interval"]
        assert low < seconds < high
        assert found["bound"]["total_seconds"] < seconds


def test_a_cluster_without_a_profile_has_no_estimate(partita: Partita):
    found = partita("predict", "palm-8b", "--on", "tpu-v5p:2x2x2", "--phase", "decode", "--json").json
    assert found["estimate"] is None
    cost = found["chips"] * found["bound"]["step_seconds"] / found["tokens_per_step"]
    assert found["chip_seconds_per_token"] == pytest.approx(cost)


def test_predict(partita: Partita):
    options = ("--attention", "batch", "--batch", 64, "--context", 2048, "--weights", "int8", "--json")
    found = partita(*PREDICT, *options).json
    check_prediction(found, "decode")
    assert found["layout"]["ffn"] == "ws2d"
    assert found["layout"]["attention"] == "batch"
    assert found["layout"]["mesh"] == {"x": 4, "y": 4, "z": 4}
    assert found["layout"]["roles"]["x"] == {"weights": "e", "attention": "batch"}
    assert {
        key: found[key] for key in ("model", "cluster", "chips", "batch", "tokens_per_step", "context")
    } == {
        "model": "palm-540b",
        "cluster": "tpu-v4:4x4x4",
        "chips": 64,
        "batch": 64,
        "tokens_per_step": 64,
        "context": 2048,
    }
    assert (found["weights"], found["kv"], found["binds"]) == ("int8", "bf16", "weights")


def test_predict_of_a_prefill_with_roles(partita: Partita):
    roles = ("--ffn", "x=e-gathered,y=f,z=replica", "--attention", "x=heads,y=batch,z=context")
    palm = ("palm-62b", "--on", "tpu-v4:4x4x4", "--phase", "prefill")
    found = partita("predict", *palm, *roles, "--prompt", 1024, "--json").json
    check_prediction(found, "prefill")
    assert (found["tokens_per_step"], found["context"]) == (1024, 1024)
    assert found["layout"]["ffn"] == "x=e-gathered,y=f,z=replica"
    assert found["layout"]["roles"]["z"] == {"weights": "replica", "attention": "context"}


def test_prompt_and_context_stand_in_for_each_other(partita: Partita):
    decode = ("predict", "palm-8b", "--on", "tpu-v4:2x2x2", "--phase", "decode", "--json")
    assert partita(*decode).json["context"] == 2048
    assert partita(*decode, "--prompt", 100).json == partita(*decode, "--context", 100).json
    assert partita(*decode, "--prompt", 100, "--context", 300).json["context"] == 300


def test_plan(partita: Partita):
    sizes = ("--prompt", 2048, "--output", 64, "--batch", 64, "--prefill-batch", 1, "--top", 3)
    found = partita("plan", *PALM, *sizes, "--weights", "int8", "--objective", "latency", "--json").json
    assert found["schema"] == "partita.plan/1"
    assert found["objective"] == "latency"
    check_prediction(found["prefill"], "prefill")
    check_prediction(found["decode"], "decode")
    assert found["prefill"]["layout"]["ffn"] == found["decode"]["layout"]["ffn"] == "ws2d"
    assert found["ranked_by"] == "bound"
    least = sum(found[phase]["bound"]["total_seconds"] for phase in ("prefill", "decode"))
    assert found["latency_seconds"] == pytest.approx(least + found["switch"]["bound"]["seconds"])
    assert (found["prefill"]["batch"], found["decode"]["batch"]) == (1, 64)
    assert len(found["runners_up"]) == 2
    assert {"prefill", "decode"} <= found["runners_up"][0].keys()
    assert isinstance(found["frontier"], list)
    assert found["reasons"]
    assert all(isinstance(reason, str) for reason in found["reasons"])


def test_a_plan_by_the_estimate(partita: Partita):
    sizes = ("--prompt", 2048, "--output", 64, "--batch", 64, "--prefill-batch", 1, "--by", "estimate")
    found = partita("plan", *PALM, *sizes, "--weights", "int8", "--json").json
    assert found["ranked_by"] == "estimate"
    estimated = sum(found[phase]["estimate"]["total_seconds"] for phase in ("prefill", "decode"))
    assert found["latency_seconds"] == pytest.approx(estimated + found["switch"]["estimate"]["seconds"])


def test_a_plan_chooses_its_batch(partita: Partita):
    common = ("plan", "palm-8b", "--on", "tpu-v4:2x2x2", "--prompt", 256, "--json")
    assert partita(*common).json["decode"]["batch"] == 1
    free = partita(*common, "--objective", "cost").json
    for by, most in (("estimate", 8e-3), ("bound", 2.5e-3)):
        limits = ("--max-tpot", f"{most * 1e3:g}ms", "--max-ttft", "0.5s", "--by", by)
        limited = partita(*common, "--objective", "cost", *limits).json
        assert limited["decode"][by]["step_seconds"] <= most < free["decode"][by]["step_seconds"]
        assert 1 < limited["decode"]["batch"] < free["decode"]["batch"]


def test_explain(partita: Partita):
    options = ("--attention", "batch", "--batch", 64, "--context", 2048)
    predicted = partita(*PREDICT, *options, "--json").json
    found = partita("explain", *PREDICT[1:], *options, "--json").json
    assert found["schema"] == "partita.explanation/1"
    (phase,) = found["phases"]
    assert (phase["phase"], phase["layout"]) == ("decode", "ws2d/batch")
    keys = {"op", "before", "after", "flops", "memory_bytes", "sent_bytes", "bound_seconds", "share"}
    assert all(keys <= op.keys() for op in phase["ops"])
    for name in ("bound", "estimate"):
        seconds = sum(op["bound_seconds" if name == "bound" else "estimated_seconds"] for op in phase["ops"])
        assert seconds == pytest.approx(predicted[name]["step_seconds"], rel=1e-9)


def test_models_have_exact_parameters(partita: Partita):
    found = {model["name"]: model for model in partita("models", "--json").json}
    assert set(found) == set(model_names())
    expected = {
        "palm-8b": 8_632_401_920,
        "palm-62b": 62_496_178_176,
        "palm-540b": 540_356_640_768,
        "llama-3-8b": 8_030_261_248,
        "llama-3-70b": 70_553_706_496,
        "llama-3-405b": 405_853_388_800,
        "smollm2-135m": 134_515_008,
    }
    assert {name: found[name]["parameters"] for name in expected} == expected
    assert found["palm-540b-multihead"]["head_dim"] == 128
    assert all(model["sources"] for model in found.values())


def test_clusters(partita: Partita):
    (tpu, *_) = (c for c in partita("clusters", "--json").json if c["name"] == "tpu-v4")
    assert tpu["form"] == "tpu-v4:AxBxC"
    assert tpu["chip"]["peak_flops"]["bf16"] == 275e12
    assert tpu["chip"]["hbm_bytes"] == 32 * 2**30
    assert tpu["chip"]["hbm_bandwidth"] == 1.2e12
    assert len(tpu["fabric"]) == 3
    assert tpu["sources"]["chip"]


# -- a plan as a file -----------------------------------------------------------------------------------


def test_a_saved_plan_is_what_was_printed_and_what_explain_reads(partita: Partita, tmp_path: Path):
    file = tmp_path / "plan.json"
    plan = ("plan", "palm-8b", "--on", "tpu-v4:2x2x2", "--batch", 32, "--prompt", 512)
    printed = partita(*plan, "--save", file, "--json").json
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    explained = partita("explain", file, "--json").json
    assert [phase["phase"] for phase in explained["phases"]] == ["prefill", "decode"]
    for phase in explained["phases"]:
        mine = printed[phase["phase"]]
        assert phase["layout"] == f"{mine['layout']['ffn']}/{mine['layout']['attention']}"
        seconds = sum(op["bound_seconds"] for op in phase["ops"])
        assert seconds == pytest.approx(mine["bound"]["step_seconds"], rel=1e-9)
    text = partita("explain", file)
    assert (text.code, text.err) == (0, "")
    for phase in explained["phases"]:
        assert f"{phase['phase']} in {phase['layout']}" in " ".join(text.out.split())


def test_saving_twice_writes_the_newer_plan(partita: Partita, tmp_path: Path):
    file = tmp_path / "plan.json"
    plan = ("plan", "palm-8b", "--on", "tpu-v4:2x2x2", "--batch", 4, "--prompt", 64, "--save", file, "--json")
    partita(*plan)
    first = file.read_text(encoding="utf-8")
    partita(*plan, "--objective", "cost")
    assert file.read_text(encoding="utf-8") != first
    assert '"objective": "cost"' in file.read_text(encoding="utf-8")


# -- a model of one's own -------------------------------------------------------------------------------


def test_a_gguf_file_can_be_planned(partita: Partita, tiny: Path):
    found = partita("plan", tiny, "--on", "tpu-v4:1x1x2", "--batch", 2, "--prompt", 8, "--json").json
    assert found["setting"]["model"]["d_model"] == 8
    assert found["setting"]["model"]["vocabulary"] == 12


def test_a_folder_with_a_config_can_be_planned(partita: Partita, config: Path):
    found = partita("plan", config, "--on", "tpu-v4:1x1x2", "--batch", 2, "--prompt", 8, "--json").json
    assert found["setting"]["model"]["d_ff"] == 128


# -- text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("models",), ["palm-540b", "540,356,640,768", "smollm2-135m"]),
        (("clusters",), ["tpu-v4", "275T"]),
        (
            (*PREDICT, "--batch", 64, "--weights", "int8"),
            ["ws2d/batch", "memory per chip", "weights 8.45 GB", "step, estimated", "profile tpu-v4"],
        ),
        (
            ("predict", "palm-8b", "--on", "tpu-v5p:2x2x2", "--phase", "decode"),
            ["step, bound", "no profile for this cluster: bound only", "partita calibrate"],
        ),
        (("plan", "palm-8b", "--on", "tpu-v4:2x2x2", "--batch", 4), ["runner-up", "prefill: ", "decode: "]),
        (("explain", *PREDICT[1:]), ["partialsum-x", "reduce-scatter x118", "weights stored as"]),
    ],
    ids=["models", "clusters", "predict", "predict without a profile", "plan", "explain"],
)
def test_tables_for_people(arguments: tuple[object, ...], expected: list[str], partita: Partita):
    ran = partita(*arguments)
    assert (ran.code, ran.err) == (0, "")
    for part in expected:
        assert part in ran.out
