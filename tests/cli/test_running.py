"""`generate` and `verify`: a model run on a small mesh of this process's CPU devices."""

import json
from pathlib import Path

import pytest
from tests.checkpoints import tiny_folder, tiny_gguf
from tests.cli.conftest import Partita

from partita.checkpoints.open import open_checkpoint


def test_generate_prints_one_object_and_the_same_tokens_as_a_plan_says(
    partita: Partita, tiny: Path, tmp_path: Path
):
    """It runs from text on two devices, and from token ids on two as a plan file says."""
    layout = ("--mesh", "x=2", "--ffn", "wg-x", "--attention", "heads")
    found = partita("generate", tiny, "--prompt", "ab", "--max-tokens", 3, *layout, "--json").json
    assert found.keys() >= {
        "text",
        "tokens",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "seconds",
    }
    assert found["text"] == f"ab{found['completion']}"
    assert len(found["tokens"]) == found["completion_tokens"]
    assert found["finish_reason"] == "length"
    assert found["completion_tokens"] == 3
    assert found["prompt_tokens"] == 1  # "ab" is one token
    assert found["seconds"].keys() >= {"prefill", "decode"}

    plan = tmp_path / "plan.json"
    made = ("plan", tiny, "--on", "tpu-v4:1x1x2", "--batch", 2, "--prompt", 8, "--output", 4, "--save", plan)
    assert partita(*made).code == 0
    planned = partita("generate", tiny, "--prompt-ids", 8, "--max-tokens", 3, "--plan", plan, "--json").json
    assert planned["tokens"] == found["tokens"]
    assert planned["prompt_tokens"] == 1
    assert planned["text"] == found["completion"]


def test_generate_draws_samples_that_a_seed_brings_back(partita: Partita, tiny: Path):
    ask = (
        "generate",
        tiny,
        "--prompt",
        "ab",
        "--max-tokens",
        6,
        "--temperature",
        2,
        "--n",
        3,
        "--logprobs",
        2,
    )
    cut = ("--top-p", 0.99, "--repetition-penalty", 1.1, "--logit-bias", "5=-1,6=-2", "--logprobs", 2)
    found = partita(*ask, *cut, "--seed", 7, "--json").json
    again = partita(*ask, *cut, "--seed", 7, "--json", "--mesh", "x=2").json
    tokens = [sample["tokens"] for sample in found["samples"]]
    assert tokens == [sample["tokens"] for sample in again["samples"]]
    assert found["tokens"] == tokens[0]
    assert len({tuple(each) for each in tokens}) == 3
    for sample in found["samples"]:
        assert sample["text"] == f"ab{sample['completion']}"
        assert [each["token"] for each in sample["logprobs"]] == sample["tokens"]
        for each in sample["logprobs"]:
            likeliest = [other["logprob"] for other in each["alternatives"]]
            assert likeliest == sorted(likeliest, reverse=True)
            assert 0 >= likeliest[0] >= each["logprob"]
            assert len(likeliest) == 2
    stopped = partita(*ask, *cut, "--seed", 7, "--stop-token-ids", tokens[1][2], "--json").json
    assert stopped["samples"][1]["tokens"] == tokens[1][: tokens[1].index(tokens[1][2])]
    assert stopped["samples"][1]["finish_reason"] == "stop"

    shown = partita(*ask, "--seed", 7).out
    assert [f"--- sample {i} of 3\nab" in shown for i in (1, 2, 3)] == [True] * 3


def test_verify_prints_exact_checks_of_both_phases(partita: Partita):
    layouts = ("--prefill-ffn", "wg-x", "--ffn", "ws2d", "--attention", "batch")
    found = partita("verify", "smollm2-135m", "--mesh", "x=2", *layouts, "--batch", 2, "--json").json
    assert found["exact"] is True
    assert [(check["phase"], check["layout"]) for check in found["checks"]] == [
        ("prefill", "wg-x/batch"),
        ("switch", "wg-x/batch -> ws2d/batch"),
        ("decode", "ws2d/batch"),
    ]
    for check in found["checks"]:
        assert check["predicted"] == check["counted"] == check["compiled"]
        assert check["flops"]["predicted"] == check["flops"]["counted"]
        assert check["messages"]["predicted"] == check["messages"]["counted"]
    assert found["checks"][0]["predicted"]["all-gather"] > 0
    assert found["checks"][2]["predicted"]["reduce-scatter"] > 0


def test_a_difference_is_shown_and_exits_with_1(
    partita: Partita, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one byte too many predicted, the table says so, and so does the exit code."""
    import partita.measure.verify as measure

    honest = measure.predicted

    def dishonest(*arguments):
        counts = honest(*arguments)
        for key in list(counts.sent_bytes)[:1]:
            counts.sent_bytes[key] += 1
        return counts

    monkeypatch.setattr(measure, "predicted", dishonest)
    ran = partita("verify", tiny, "--mesh", "x=2", "--ffn", "ws2d", "--batch", 2, "--dtype", "bf16")
    assert ran.code == 1
    assert "DIFFERS" in ran.out
    assert ran.out.rstrip().endswith("NOT exact")
    assert "Traceback" not in ran.err


def test_a_tokenizer_that_is_not_understood_stops_only_text(partita: Partita, tmp_path: Path):
    other = tiny_gguf.write(tmp_path / "tiny.gguf", {"tokenizer.ggml.pre": "unheard-of"})
    ask = ("--max-tokens", 3, "--mesh", "x=1")
    found = partita("generate", other, "--prompt-ids", "8,3", "--logit-bias", "5=100", *ask)
    assert (found.code, found.out) == (0, "5 5 5 \n")
    assert found.err.startswith("note: the tokenizer is not understood, so the text is shown as token ids")
    assert found.err.count("\n") == 1
    refused = partita("generate", other, "--prompt", "ab", *ask)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(
        "error: tokenizer.ggml.pre: 'unheard-of': not read; these are: default, gpt-2"
    )
    made = partita("quantize", other, tmp_path / "out")
    assert made.code == 0
    assert made.err.startswith("note: the tokenizer is not understood, so none is written")
    written = open_checkpoint(str(tmp_path / "out"))
    assert (written.tokenizer, written.eos_ids) == (None, {11})


def test_generate_draws_as_the_checkpoint_asks_unless_options_say_else(partita: Partita, tmp_path: Path):
    asks = {"temp": 2.0, "top_k": 5, "penalty_repeat": 1.25}
    asking = tiny_gguf.write(tmp_path / "asks.gguf", {f"general.sampling.{k}": v for k, v in asks.items()})
    usual = tiny_gguf.write(tmp_path / "usual.gguf")

    def generate(model: Path, *options: object) -> tuple[dict, str]:
        ran = partita("generate", model, "--prompt", "ab", "--max-tokens", 6, "--seed", 7, *options, "--json")
        assert ran.code == 0
        return json.loads(ran.out), ran.err

    taken, note = generate(asking)
    given, _ = generate(usual, "--temperature", 2, "--top-k", 5, "--repetition-penalty", 1.25)
    assert taken["tokens"] == given["tokens"]
    assert "the checkpoint asks for --temperature 2, --top-k 5, --repetition-penalty 1.25;" in note
    drawn = {"temperature": 2.0, "top_k": 5, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.25}
    others = {"max_tokens": 6, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    asked_for = ["temperature", "top_k", "repetition_penalty"]
    assert taken["sampling"] == {**drawn, **others, "from_checkpoint": asked_for}
    assert given["sampling"] == {**drawn, **others, "from_checkpoint": []}
    greedy, note = generate(asking, "--temperature", 0, "--repetition-penalty", 1)
    assert greedy["tokens"] == generate(usual)[0]["tokens"]
    assert "without effect: --seed" in note
    assert "--top-k 5" in note


def test_a_checkpoint_that_asks_for_more_tokens_than_there_is_room_for_gets_fewer(
    partita: Partita, tmp_path: Path
):
    folder = tiny_folder.write(
        tmp_path / "folder", tiny_folder.CONFIGS["llama"][0], tiny_folder.stored("llama")[1]
    )
    (folder / "generation_config.json").write_text('{"max_new_tokens": 500}', encoding="utf-8")
    ran = partita("generate", folder, "--prompt-ids", "1,2,3,4", "--ignore-eos", "--json")
    found = json.loads(ran.out)
    assert (found["sampling"]["max_tokens"], found["completion_tokens"]) == (60, 60)
    assert "--max-tokens 60" in ran.err
