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
