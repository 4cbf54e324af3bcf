"""Wrong input: exit code 2 and one clear line; with `--json` one object with field, value and message."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CONFIG, Partita, Ran

PALM = ("palm-540b", "--on", "tpu-v4:4x4x4")
SMALL = ("palm-8b", "--on", "tpu-v4:2x2x2")
DECODE = ("predict", *SMALL, "--phase", "decode")


def refused(partita: Partita, *arguments: object) -> dict[str, Any]:
    """Runs the line in text and with `--json`, holds both to the contract, and returns the error."""
    text = partita(*arguments)
    check_line(text)
    found = partita(*arguments, "--json")
    assert found.code == 2
    assert found.json.keys() == {"error"}
    error = found.json["error"]
    assert error.keys() == {"field", "value", "message"}
    assert isinstance(error["field"], str)
    assert error["message"]
    assert "\n" not in error["message"]
    shown = [error["field"], error["message"]]
    if error["value"] is not None:
        shown.insert(1, str(error["value"]))
    assert text.err == f"error: {' '.join(': '.join(shown).split())}\n"
    return error


def check_line(ran: Ran) -> None:
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert "Error:" not in ran.err


# Arguments, then the field, the value and a part of the message.
CASES: list[tuple[tuple[object, ...], str, object, str]] = [
    # what is planned
    (("plan", "palm540b", "--on", "tpu-v4:4x4x4"), "model", "palm540b", "did you mean palm-540b?"),
    (("plan", "gpt-4", "--on", "tpu-v4:4x4x4"), "model", "gpt-4", "accepted: palm-8b, palm-62b"),
    (("plan", "none.gguf", "--on", "tpu-v4:4x4x4"), "model", "none.gguf", "there is no such file"),
    (("plan", "palm-8b", "--on", "tpu-v5:4x4x4"), "cluster", "tpu-v5:4x4x4", "did you mean tpu-v5p?"),
    (("plan", "palm-8b", "--on", "tpu-v4:4x4"), "cluster", "tpu-v4:4x4", "needs 3 sizes, not 2"),
    (("plan", "palm-8b", "--on", "none.toml"), "cluster", "none.toml", ""),
    (("plan", *SMALL, "--objective", "fun"), "objective", "fun", "latency, cost, throughput, context"),
    (("plan", *SMALL, "--batch", 0), "batch", "0", "a whole number from 1 to 1,000,000,000, or auto"),
    (("plan", *SMALL, "--batch", "x"), "batch", "x", "a whole number from 1 to"),
    (("plan", *SMALL, "--batch", "-3"), "batch", "-3", "a whole number from 1 to"),
    (("plan", *SMALL, "--batch", "2.5"), "batch", "2.5", "a whole number from 1 to"),
    (("plan", *SMALL, "--batch", 4, "--prefill-batch", 0), "prefill-batch", "0", "from 1 to"),
    (("plan", *SMALL, "--context", 0), "context", 0, "a whole number of at least 1"),
    (
        ("plan", *SMALL, "--prompt", 0),
        "prompt",
        "0",
        "a whole number from 1 to 1,000,000,000, or a distribution",
    ),
    (("plan", *SMALL, "--output", -1), "output", "-1", "a whole number from 1 to 1,000,000, or"),
    (("plan", *SMALL, "--top", 0), "top", 0, "1 or more"),
    (("plan", *SMALL, "--mesh", "x=2,y=2"), "mesh", "x=2,y=2", "its size must be that of tpu-v4:2x2x2, 8"),
    (("plan", *SMALL, "--max-tpot", "fast"), "max-tpot", "fast", "such as 30ms or 1.5s"),
    (("plan", *SMALL, "--max-ttft", ""), "max-ttft", "", "such as 30ms or 1.5s"),
    (("plan", *SMALL, "--max-ttft", "30"), "max-ttft", "30", "with a unit"),
    (("plan", *SMALL, "--max-tpot", "1us"), "max-tpot", "1 us", "the fastest decode step's bound is"),
    (("plan", *SMALL, "--max-ttft=1us"), "max-ttft", "1 us", "the fastest prefill's bound is"),
    (("plan", *SMALL, "--kv", "int4"), "kv", "int4", "f32, bf16, int8"),
    (("plan", *SMALL, "--reduce", "int8"), "reduce", "int8", "f32, bf16"),
    # layouts
    ((*DECODE, "--ffn", "ws3d"), "ffn", "ws3d", "ws1d, ws2d, wg-x, wg-xy, wg-xyz"),
    ((*DECODE, "--ffn", "x=e,y=q,z=f"), "ffn", "x=e,y=q,z=f", "unknown role 'q'"),
    ((*DECODE, "--ffn", "x=e,y=f,w=f"), "ffn", "x=e,y=f,w=f", "axis 'w' is not one of the mesh's (x, y, z)"),
    ((*DECODE, "--ffn", "x=e,y=f"), "ffn", "x=e,y=f", "no role for axis z"),
    ((*DECODE, "--attention", "head"), "attention", "head", "heads, batch"),
    ((*DECODE, "--attention", "x=e"), "attention", "x=e", "heads, batch, context, none"),
    ((*DECODE, "--mesh", "x=2,y=2,z=3"), "mesh", "x=2,y=2,z=3", "has 12 chips; its size must be"),
    ((*DECODE, "--mesh", "X=8"), "mesh", "X=8", "x=4,y=4,z=4"),
    ((*DECODE, "--mesh", "x=2,x=4"), "mesh", "x=2,x=4", "axis x is named twice"),
    ((*DECODE, "--batch", 0), "batch", 0, "a whole number of at least 1"),
    ((*DECODE, "--batch", "x"), "batch", "x", "integer"),
    ((*DECODE, "--batch=x"), "batch", "x", "integer"),
    ((*DECODE, "--context", 0), "context", 0, "a whole number of at least 1"),
    (("predict", *SMALL, "--phase", "training"), "phase", "training", "prefill, decode"),
    (("explain", *SMALL, "--ffn", "ws3d"), "ffn", "ws3d", "ws1d, ws2d"),
    (("explain", "none.json"), "plan", "none.json", "cannot be read: No such file"),
    # the line itself
    (("plan",), "model", None, "is needed: Catalogue name"),
    (("plan", "palm-8b"), "on", None, "is needed: tpu-v4:4x4x4"),
    (("predict", *SMALL), "phase", None, "is needed: prefill or decode"),
    (("plan", *SMALL, "--batsh", 4), "--batsh", None, "did you mean --batch"),
    (("models", "--bogus"), "--bogus", None, "is not an option here; see partita models --help"),
    (("plan", *SMALL, "more"), "arguments", None, "unexpected extra argument(s) (more)"),
    (("plot", *SMALL), "command", "plot", "accepted are plan, predict, explain, "),
    # what is run
    (("generate", "smollm2", "--prompt", "a", "--temperature", -0.7), "temperature", -0.7, "from 0 to 100"),
    (("generate", "smollm2", "--prompt", "a", "--temperature", "nan"), "temperature", "nan", "from 0 to 100"),
    (("generate", "smollm2", "--prompt", "a", "--top-p", 0), "top-p", 0.0, "above 0"),
    (("generate", "smollm2", "--prompt", "a", "--n", 0), "n", 0, "from 1"),
    (("generate", "smollm2", "--prompt", "a", "--logit-bias", "5"), "logit-bias", "5", "token=number"),
    (("generate", "smollm2", "--prompt", "a", "--logit-bias", "5=x"), "logit-bias", "5=x", "token=number"),
    (("generate", "smollm2", "--prompt", "a", "--logit-bias", "5=101"), "logit-bias", 101.0, "-100 to 100"),
    (("generate", "smollm2", "--prompt", "a", "--logit-bias", "60000=1"), "logit-bias", 60000, "0 to 49151"),
    (("generate", "smollm2", "--prompt", "a", "--stop", ""), "stop", "", "at least one character"),
    (("generate", "smollm2", "--prompt", "a", "--stop-token-ids", "a"), "stop-token-ids", "a", "1,2,3"),
    (("generate", "smollm2", "--prompt", "a", "--stop-token-ids", "49152"), "stop-token-ids", 49152, "49151"),
    (("generate", "smollm2", "--prompt", "a", "--temperature", "hot"), "temperature", "hot", "number"),
    (("generate", "smollm2", "--prompt", "a", "--max-tokens", 0), "max-tokens", 0, "from 1 to"),
    (("generate", "smollm2", "--prompt", "a", "--devices", 0), "devices", 0, "1 or more"),
    (("generate", "smollm2", "--prompt", "a", "--dtype", "f8"), "dtype", "f8", "f32, bf16"),
    (("generate", "smollm2", "--prompt", "a", "--mesh", "x=0"), "mesh", "x=0", "x=4,y=4,z=4"),
    (("generate", "smollm2", "--prompt", "a", "--prefill-ffn", "wg"), "prefill-ffn", "wg", "wg-xyz"),
    (("generate", "smollm2", "--prompt", "a", "--plan", "none.json"), "plan", "none.json", "cannot be read"),
    (("generate", "palm-8b", "--prompt", "a"), "model", "palm-8b", "its weights cannot be read here"),
    (("generate", "smollm3", "--prompt", "a"), "model", "smollm3", "did you mean smollm2"),
    (("generate", "none.gguf", "--prompt", "a"), "model", "none.gguf", ""),
    (("verify", "smollm2"), "mesh", None, "--mesh or --plan is needed"),
    (("verify", "smollm2", "--mesh", "x=2", "--batch", 0), "batch", 0, "a whole number of at least 1"),
    (("verify", "smollm2", "--mesh", "x=2", "--dtype", "int8"), "dtype", "int8", "f32, bf16"),
    (("verify", "smollm2", "--mesh", "x=16"), "mesh", "16 chips", "up to 8 are accepted"),
    (("verify", "smollm2", "--mesh", "x=2", "--devices", 4), "mesh", "2 chips", "the device count, 4"),
]


@pytest.mark.parametrize(
    ("arguments", "field", "value", "message"), CASES, ids=[" ".join(map(str, case[0])) for case in CASES]
)
def test_it_is_refused_with_field_value_and_what_is_accepted(
    arguments: tuple[object, ...], field: str, value: object, message: str, partita: Partita
):
    error = refused(partita, *arguments)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


def test_an_option_without_its_value_is_refused(partita: Partita):
    ran = partita("plan", *SMALL, "--batch")
    check_line(ran)
    assert ran.err.startswith("error: batch: needs a value")


def test_no_command_shows_the_help_and_the_commands(partita: Partita):
    ran = partita()
    assert ran.code == 2
    assert "Usage" in ran.out
    assert ran.err.startswith("error: command: accepted are plan, predict")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["pa\nlm", "pa\0lm", " ", "", "p" * 5000])
def test_no_name_breaks_the_line(name: str, partita: Partita):
    check_line(partita("plan", name, "--on", "tpu-v4:4x4x4"))
    error = partita("plan", name, "--on", "tpu-v4:4x4x4", "--json").json["error"]
    assert (error["field"], error["value"]) == ("model", name)


# -- models of one's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("field", CONFIG)
def test_a_config_without_a_needed_field_names_it(field: str, partita: Partita, config: Path):
    left = {name: value for name, value in CONFIG.items() if name != field}
    (config / "config.json").write_text(json.dumps(left), encoding="utf-8")
    error = refused(partita, "plan", config, "--on", "tpu-v4:1x1x1")
    assert (error["field"], error["message"]) == (field, f"config.json needs {field}")
    assert error["value"] == str(config / "config.json")


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ("{", "model", "is not valid JSON"),
        ("[]", "model", "must hold one JSON object"),
        (
            json.dumps(CONFIG | {"num_hidden_layers": "two"}),
            "num_hidden_layers",
            "a whole number of at least 1",
        ),
        (json.dumps(CONFIG | {"hidden_act": "relu"}), "hidden_act", "accepted: silu"),
        (json.dumps(CONFIG | {"model_type": "lama"}), "model_type", "did you mean llama?"),
    ],
    ids=["cut", "list", "type", "activation", "kind"],
)
def test_a_config_that_cannot_be_planned(
    content: str, field: str, message: str, partita: Partita, config: Path
):
    (config / "config.json").write_text(content, encoding="utf-8")
    error = refused(partita, "plan", config, "--on", "tpu-v4:1x1x1")
    assert error["field"] == field
    assert message in error["message"]


def test_a_folder_without_a_config(partita: Partita, tmp_path: Path):
    error = refused(partita, "plan", tmp_path, "--on", "tpu-v4:1x1x1")
    assert (error["field"], error["value"]) == ("model", str(tmp_path))


@pytest.mark.parametrize("command", ["plan", "predict", "generate", "verify"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_gguf(command: str, share: float, partita: Partita, tiny: Path, tmp_path: Path):
    cut, whole = tmp_path / "cut.gguf", tiny.read_bytes()
    cut.write_bytes(whole[: int(share * len(whole))])
    options = {
        "plan": ("--on", "tpu-v4:1x1x1"),
        "predict": ("--on", "tpu-v4:1x1x1", "--phase", "decode"),
        "generate": ("--prompt-ids", "1"),
        "verify": ("--mesh", "x=1"),
    }
    error = refused(partita, command, cut, *options[command])
    assert str(cut) in f"{error['value']} {error['message']}"


# -- what does not fit ----------------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_gives_bytes_by_part_and_the_smallest_change(partita: Partita):
    error = refused(partita, "plan", "palm-540b", "--on", "tpu-v4:2x2x2", "--batch", 64)
    assert (error["field"], error["value"]) == ("cluster", "tpu-v4:2x2x2")
    # 1.08 TB on 8 chips, and of each chip 1.25 GiB for its runtime
    # and of its 34.4 GB nine tenths; of 64 caches of 2,112 tokens, 118 layers of 2 x 256 in bfloat16, 8 on
    # each, and a prompt of 2,048 on all
    for part in ("weights 135 GB", "kv 2.29 GB", "runtime 1.34 GB", "of 30.9 GB per chip (0.9 of 34.4 GB)"):
        assert part in error["message"]
    assert error["message"].endswith("smallest change that fits: --on tpu-v4:4x4x4")
    assert partita("plan", "palm-540b", "--on", "tpu-v4:4x4x4", "--batch", 64).code == 0


def test_a_phase_that_does_not_fit_gives_bytes_by_part_and_the_smallest_change(partita: Partita):
    predict = ("predict", *PALM, "--phase", "decode", "--batch", 1024, "--context", 16384)
    error = refused(partita, *predict)
    assert error["message"].startswith(
        "palm-540b does not fit: decode in ws2d/batch needs weights 16.9 GB + kv"
    )
    changes = error["message"].partition("smallest change that fits: ")[2].split("; or ")
    assert [change.split()[0] for change in changes] == ["--batch", "--kv", "--context", "--on"]
    for change in changes:
        assert partita(*predict, *change.split()).code == 0
    batch = int(changes[0].split()[1])
    refused(partita, *predict, "--batch", batch + 64)  # a sequence more on each of 64 chips


# -- files ----------------------------------------------------------------------------------------------


def test_a_plan_cannot_be_saved_to_a_missing_folder(partita: Partita, tmp_path: Path):
    file = tmp_path / "none" / "plan.json"
    error = refused(partita, "plan", *SMALL, "--batch", 1, "--save", file)
    assert (error["field"], error["value"]) == ("save", str(file))
    assert "cannot be written: No such file or directory" in error["message"]
    error = refused(partita, "plan", *SMALL, "--batch", 1, "--save", tmp_path)
    assert (error["field"], list(tmp_path.iterdir())) == ("save", [])


@pytest.mark.parametrize("command", [("explain",), ("generate", "smollm2", "--prompt", "a", "--plan")])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"schema": "partita.plan/9"}', "its schema must be partita.plan/1"),
        ('{"schema": "partita.plan/1"}', "'setting' is missing"),
    ],
    ids=["cut", "schema", "key"],
)
def test_a_broken_plan(
    command: tuple[str, ...], content: str, message: str, partita: Partita, tmp_path: Path
):
    file = tmp_path / "plan.json"
    file.write_text(content, encoding="utf-8")
    error = refused(partita, *command, file)
    assert (error["field"], error["value"]) == ("plan", str(file))
    assert message in error["message"]


def test_a_plan_has_a_mesh_of_its_own(partita: Partita, tmp_path: Path):
    file = tmp_path / "plan.json"
    partita("plan", "smollm2", "--on", "tpu-v4:1x1x2", "--batch", 2, "--prompt", 8, "--save", file)
    error = refused(partita, "generate", "smollm2", "--prompt", "a", "--plan", file, "--mesh", "x=2")
    assert (error["field"], error["value"]) == ("mesh", "x=2")


# -- prompts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field", "value", "message"),
    [
        ((), "prompt", None, "give --prompt TEXT, --prompt-ids 1,2,3 or --messages FILE"),
        (("--prompt", "a", "--prompt-ids", "1"), "prompt", None, "give --prompt TEXT, --prompt-ids 1,2,3 or"),
        (("--prompt-ids", "a"), "prompt-ids", "a", "joined by commas"),
        (("--prompt-ids", "1,,2"), "prompt-ids", "1,,2", "joined by commas"),
        (("--prompt-ids", "-1"), "prompt-ids", "-1", "joined by commas"),
        (("--prompt-ids", ""), "prompt-ids", "", "joined by commas"),
        (("--prompt-ids", "1,12"), "prompt", 12, "token ids go from 0 to 11"),
        (
            ("--prompt-ids", "1", "--max-tokens", 64),
            "context",
            65,
            "prompt 1 + output 64 exceeds the 64 tokens",
        ),
        (("--prompt-ids", ",".join("1" * 65)), "context", 66, "prompt 65 + output 1 exceeds the 64 tokens"),
        (("--prompt", "", "--max-tokens", 4), "prompt", "", "at least one token"),
    ],
    ids=["neither", "both", "text", "gap", "negative", "empty", "range", "long", "longer", "nothing"],
)
def test_a_prompt_that_cannot_be_run(
    options: tuple[object, ...], field: str, value: object, message: str, partita: Partita, tiny: Path
):
    error = refused(partita, "generate", tiny, *options)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


# -- anything else --------------------------------------------------------------------------------------


def test_an_internal_error_is_one_line_and_exits_with_1(partita: Partita, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any):
        raise RuntimeError("of\ntwo lines")

    monkeypatch.setattr("partita.cli.plan.best_plan", broken)
    monkeypatch.delenv("PARTITA_TRACEBACK", raising=False)
    ran = partita("plan", *SMALL)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "internal error: RuntimeError: of two lines (PARTITA_TRACEBACK=1 shows where)\n"
    monkeypatch.setenv("PARTITA_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="two lines"):
        partita("plan", *SMALL)
