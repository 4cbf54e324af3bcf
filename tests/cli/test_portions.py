"""`predict` and `explain` with pipeline stages, cached prefixes, chunks and samples."""

from typing import Any

import pytest
from tests.cli.conftest import Partita
from tests.cli.test_bad_input import refused

MT_NLG = ("mt-nlg-530b", "--on", "a100-80g:3x8", "--ffn", "ws1d", "--attention", "heads")
LLAMA = ("llama3-8b", "--on", "h100:1x8", "--ffn", "ws1d", "--attention", "heads")


def test_stages_share_out_the_nodes(partita: Partita):
    found = partita("predict", *MT_NLG, "--phase", "decode", "--stages", 3, "--batch", 7, "--json").json
    assert found["chips"] == 24
    assert found["layout"]["mesh"] == {"x": 1, "y": 8}
    pipeline = found["pipeline"]
    assert (pipeline["stages"], pipeline["layers"]) == (3, [35, 35, 35])
    assert (pipeline["microbatches"], pipeline["microbatch"]) == (3, 3)
    assert len(pipeline["stage_seconds"]) == 3
    passing = sum(pipeline["stage_seconds"]) + 2 * pipeline["hop_seconds"]
    assert found["bound"]["step_seconds"] == pytest.approx(max(passing, 3 * max(pipeline["stage_seconds"])))
    assert pipeline["hop_bytes"] == 3 * 20480 * 2 // 8  # bf16 activations of a microbatch over 8 chips
    assert pipeline["hop_seconds"] == pytest.approx(pipeline["hop_bytes"] / 25e9)  # InfiniBand of one GPU
    busy = max(found["bound"]["compute_seconds"], found["bound"]["memory_seconds"])
    busy += found["bound"]["communication_seconds"]
    assert found["bound"]["step_seconds"] == pytest.approx(busy + found["bound"]["idle_seconds"])


def test_one_stage_is_no_pipeline(partita: Partita):
    found = partita("predict", *LLAMA, "--phase", "decode", "--batch", 7, "--json").json
    seconds = found["bound"]["step_seconds"]
    assert found["pipeline"] == {
        "stages": 1,
        "layers": [32],
        "microbatches": 1,
        "microbatch": 7,
        "stage_seconds": [seconds],
        "hop_bytes": 0,
        "hop_seconds": 0.0,
    }
    assert found["bound"]["idle_seconds"] == 0


def test_prefix_and_chunk_of_a_prefill(partita: Partita):
    sizes = (
        "--phase",
        "prefill",
        "--prompt",
        2048,
        "--prefix",
        500,
        "--chunk",
        512,
        "--batch",
        12,
        "--samples",
        4,
    )
    found = partita("predict", *LLAMA, *sizes, "--json").json
    assert (found["batch"], found["tokens_per_step"], found["steps"]) == (3, 3 * 512, 4)
    workload: dict[str, Any] = found["workload"]
    assert {k: workload[k] for k in ("prompt", "prefix", "chunk", "samples", "prefill_batch")} == {
        "prompt": 2048,
        "prefix": 500,
        "chunk": 512,
        "samples": 4,
        "prefill_batch": 3,
    }
    assert 3 < found["bound"]["total_seconds"] / found["bound"]["step_seconds"] < 4  # the last has 12 tokens
    text = partita("predict", *LLAMA, *sizes).out
    assert "500 of 2,048 tokens cached, 1,548 read in 4 steps" in text
    assert "runtime 1.94 GB" in text


def test_stages_in_words(partita: Partita):
    decode = (*MT_NLG, "--phase", "decode", "--stages", 3, "--batch", 7)
    text = partita("predict", *decode).out
    assert "35, 35 and 35 layers, 3 microbatches of 3" in text
    assert "waiting for other stages" in text
    explained = partita("explain", *decode, "--json").json["phases"][0]["ops"]
    assert explained[-1]["op"] == "wait"
    assert "stages" not in partita("predict", *LLAMA, "--phase", "decode").out


@pytest.mark.parametrize(
    ("options", "field", "value", "message"),
    [
        (("--stages", 2), "stages", 2, "divides the slowest axis of a100-80g:3x8, 3 groups of 8 chips"),
        (("--stages", 0), "stages", 0, "divides the slowest axis"),
        (("--stages", "x"), "stages", "x", "integer"),
        (("--stages", 3, "--mesh", "x=3,y=8"), "mesh", "x=3,y=8", "that of a stage of a100-80g:3x8, 8"),
        (("--prefix", 2048), "prefix", 2048, "from 0 to 2047: of 2048 prompt tokens at least 1 is new"),
        (("--prefix", -1), "prefix", -1, "from 0 to 2047"),
        (("--chunk", 0), "chunk", 0, "a whole number of at least 1"),
        (("--samples", 0), "samples", 0, "a whole number of at least 1"),
    ],
    ids=str,
)
def test_wrong_portions_are_refused(
    options: tuple[object, ...], field: str, value: object, message: str, partita: Partita
):
    error = refused(partita, "predict", *MT_NLG, "--phase", "prefill", *options)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


def test_there_are_no_more_stages_than_layers(partita: Partita):
    small = ("predict", "smollm2-135m", "--on", "tpu-v4:64x1x1", "--phase", "decode", "--stages", 64)
    error = refused(partita, *small)
    assert (error["field"], error["value"]) == ("stages", 64)
    assert "has 30 layers; 1 to 30 stages are accepted" in error["message"]
