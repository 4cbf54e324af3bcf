"""Wrong input of `plan`: every option refused in one clear line, and what only looks wrong answered."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Partita
from tests.cli.test_bad_input import refused

SMALL = ("palm-8b", "--on", "tpu-v4:2x2x2")
LLAMA = ("llama3-70b", "--on", "h100:2x8")
WHOLE = "a whole number from 1 to 1,000,000,000, or auto, is accepted"
LENGTHS = "such as 512:0.7,4096:0.3"
HUGE = "9" * 30

# Arguments after `plan MODEL --on CLUSTER`, then the field, the value and a part of the message.
OPTIONS: list[tuple[tuple[object, ...], str, object, str]] = [
    (("--regime", "chat"), "regime", "chat", "accepted are interactive, long-context, offline"),
    (("--regime", "ofline"), "regime", "ofline", "did you mean offline?"),
    (("--regime", "interactive", "--prompt", 100), "prompt", "100", "a prefix of 1920 cached tokens"),
    (("--regime", "interactive", "--prefix", 1984), "prefix", 1984, "from 0 to 1983"),
    (("--prompt", ""), "prompt", "", LENGTHS),
    (("--prompt", HUGE), "prompt", HUGE, "from 1 to 1,000,000,000"),
    (("--prompt", "٣"), "prompt", "٣", LENGTHS),
    (("--prompt", "512:0.7,4096"), "prompt", "512:0.7,4096", "some lengths have a weight and some have none"),
    (("--prompt", "512,"), "prompt", "512,", "'' must be a whole number of tokens"),
    (("--prompt", "512:-1"), "prompt", "512:-1", "the weight '-1' of 512"),
    (("--prompt", "512:nan"), "prompt", "512:nan", "the weight 'nan' of 512"),
    (("--prompt", "0:1"), "prompt", "0:1", "'0' must be a whole number of tokens from 1"),
    (("--output", "64:0.5,10000000:0.5"), "output", "64:0.5,10000000:0.5", "from 1 to 1,000,000"),
    (("--prefix", 2048), "prefix", 2048, "from 0 to 2047: of 2048 prompt tokens at least 1 is new"),
    (("--prefix", -1), "prefix", "-1", "from 0 to"),
    (("--prefix", "100,3000"), "prefix", 3000, "less than the prompt"),
    (("--prompt", "512,4096", "--context", 4000), "context", 4000, "the longest request has 4160 tokens"),
    (("--context", 100), "context", 100, "2112 tokens or more"),
    (("--context", 10**10), "context", 10**10, "at most 1,000,000,000"),
    (("--chunk", 0), "chunk", "0", WHOLE),
    (("--chunk", "half"), "chunk", "half", WHOLE),
    (("--prompt", 10**9 - 64, "--chunk", 1), "chunk", 1, "at least 1,000 tokens for this prompt"),
    (("--samples", 0), "samples", 0, "a whole number of at least 1"),
    (("--samples", "many"), "samples", "many", "integer"),
    (("--samples", 10**10), "samples", 10**10, "at most 1,000,000,000"),
    (("--stages", 0), "stages", "0", WHOLE),
    (("--stages", "all"), "stages", "all", WHOLE),
    (("--stages", 3), "stages", 3, "divides the slowest axis of tpu-v4:2x2x2, 2 groups of 4 chips"),
    (("--stages", 64), "stages", 64, "1 to 32 stages"),
    (("--stages", 2, "--mesh", "x=8"), "mesh", "x=8", "that of a stage of tpu-v4:2x2x2, 4"),
    (("--batch", HUGE), "batch", HUGE, WHOLE),
    (("--batch", "²"), "batch", "²", WHOLE),
    (("--batch", 10**9), "cluster", "tpu-v4:2x2x2", "smallest change that fits: --batch"),
    (("--weights", ""), "weights", "", "f32, bf16, int8, auto"),
    (("--weights", "fp8"), "weights", "fp8", "f32, bf16, int8, auto"),
    (("--activations", "int8"), "activations", "int8", "f32, bf16"),
    (("--activations", "auto"), "activations", "auto", "f32, bf16"),
    (("--reduce", ""), "reduce", "", "f32, bf16"),
    (("--rate", "3"), "rate", "3", "such as 3/s or 200/min"),
    (("--rate", "0/s"), "rate", "0/s", "above zero"),
    (("--rate=-3/s",), "rate", "-3/s", "above zero"),
    (("--rate", "nan/s"), "rate", "nan/s", "above zero"),
    (("--rate", "10000/s"), "rate", "10000/s", "no layout sustains it: the highest rate here is"),
    (("--price", "$2"), "price", "$2", "without a currency"),
    (("--price", 0), "price", "0", "above zero"),
    (("--price", "inf"), "price", "inf", "above zero"),
    (("--memory", 30), "memory", "30", "with a unit"),
    (("--memory", "0GB"), "memory", "0GB", "above zero"),
    (("--memory", "1GB"), "memory", 10**9, "more than the 1,342,177,280 bytes that the runtime keeps"),
    (("--memory", "70GB"), "memory", 70 * 10**9, "at most the 34,359,738,368 of tpu-v4"),
    (("--memory-utilization", 0), "memory-utilization", "0", "above 0 and at most 1"),
    (("--memory-utilization", "most"), "memory-utilization", "most", "above 0 and at most 1"),
    (("--memory-utilization", 0.5, "--memory", "20GB"), "memory-utilization", "0.5", "not both"),
    (("--max-chips", 0), "max-chips", 0, "1 or more"),
    (("--max-chips", 4), "max-chips", 4, "tpu-v4:2x2x2 has 8; name a smaller one, or FAMILY:auto"),
    (("--max-tpot", "1ms", "--rate", "1/s"), "max-tpot", "1 ms", "the fastest decode step's bound is"),
    (("--max-tpot", "1us", "--by", "estimate"), "max-tpot", "1 us", "the fastest decode step's estimate is"),
    (("--max-ttft", "1us", "--by", "estimate"), "max-ttft", "1 us", "the fastest prefill's estimate is"),
    (("--by", "measured"), "by", "measured", "accepted are bound, estimate"),
    (
        ("--on", "tpu-v5p:2x2x2", "--by", "estimate"),
        "by",
        "estimate",
        "tpu-v5p:2x2x2 has no efficiency profile",
    ),
    (("--plot", "frontier.pdf"), "plot", "frontier.pdf", ".png or .svg"),
    (("--plot", "/none/frontier.png"), "plot", "/none/frontier.png", "No such file or directory"),
    (("--compare", "none.json"), "compare", "none.json", "cannot be read: No such file"),
    (("--compare", "/"), "compare", "/", "cannot be read: Is a directory"),
]


@pytest.mark.parametrize(
    ("options", "field", "value", "message"), OPTIONS, ids=[" ".join(map(str, case[0])) for case in OPTIONS]
)
def test_an_option_is_refused(
    options: tuple[object, ...], field: str, value: object, message: str, partita: Partita
):
    error = refused(partita, "plan", *SMALL, *options)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("cluster", "options", "field", "value", "message"),
    [
        ("h100", (), "cluster", "h100", "has no shape; accepted: h100:AxB, such as h100:2x8"),
        ("h100:1x9", (), "cluster", "h100:1x9", "size 2 (switch) must be at most 8, not 9"),
        ("unknown:auto", (), "cluster", "unknown:auto", "unknown; accepted: tpu-v4:AxBxC"),
        ("h10:auto", (), "cluster", "h10:auto", "did you mean h100?"),
        ("mine.toml:auto", (), "cluster", "mine.toml:auto", "cannot be read"),
        ("h100:auto", ("--mesh", "x=8"), "mesh", "x=8", "name one with its shape"),
        ("h100:auto", ("--max-chips", -1), "max-chips", -1, "1 or more"),
        ("tpu-v4:1x1x1", ("--disaggregate",), "cluster", "1 chips", "two pools need at least 2 chips"),
    ],
)
def test_a_cluster_is_refused(
    cluster: str, options: tuple[object, ...], field: str, value: object, message: str, partita: Partita
):
    error = refused(partita, "plan", "palm-8b", "--on", cluster, *options)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


def test_a_cluster_of_ones_own_has_no_pools(partita: Partita, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'chip = "tpu-v4"\n[[fabric]]\nkind = "torus"\nsize = 2\nlink_bandwidth = 45e9\n', encoding="utf-8"
    )
    error = refused(partita, "plan", "palm-8b", "--on", file, "--disaggregate")
    assert (error["field"], error["value"]) == ("disaggregate", str(file))
    assert partita("plan", "palm-8b", "--on", file, "--batch", 1).code == 0


def test_a_plan_to_compare_with_that_is_none(partita: Partita, tmp_path: Path):
    file = tmp_path / "plan.json"
    file.write_text('{"schema": "partita.plan/1"}', encoding="utf-8")
    error = refused(partita, "plan", *SMALL, "--compare", file)
    assert (error["field"], error["value"]) == ("compare", str(file))
    assert "'setting' is missing" in error["message"]


# -- traces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; accepted is a CSV file"),
        (b"prompt,output\n", "line 1 is a header and no request follows"),
        (b"prompt,output\n100,10\n-5,3\n", "line 3, prompt: '-5' must be a whole number"),
        (b"prompt,output\n100,ten\n", "line 2, output: 'ten' must be a whole number"),
        (b"prompt\n100\n", "there is no column output"),
        (b"prompt,outptu\n1,1\n", "'outptu' is no known column; did you mean output?"),
        (b"prompt,output\n1\n", "line 2 has 1 fields and the header has 2"),
        (b"prompt,output,prefix\n100,10,100\n", "line 2, prefix: 100: must be less than the prompt, 100"),
        (b"prompt,output,weight\n100,10,nan\n", "line 2, weight: 'nan'"),
        (bytes(range(256)), "is not text in UTF-8"),
        (b'prompt,output\n"100,10\n', "is not CSV"),
    ],
    ids=str,
)
def test_a_trace_is_refused_with_its_line(content: bytes, message: str, partita: Partita, tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_bytes(content)
    error = refused(partita, "plan", *SMALL, "--trace", file)
    assert (error["field"], error["value"]) == ("trace", str(file))
    assert message in error["message"]


def test_a_trace_that_is_no_file(partita: Partita, tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.csv"):
        error = refused(partita, "plan", *SMALL, "--trace", path)
        assert (error["field"], error["value"]) == ("trace", str(path))
        assert "cannot be read" in error["message"]


def test_a_trace_says_the_lengths_itself(partita: Partita, tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text("prompt,output\n100,10\n", encoding="utf-8")
    error = refused(partita, "plan", *SMALL, "--trace", file, "--output", 3)
    assert (error["field"], error["value"]) == ("output", "3")


def test_a_trace_of_ten_thousand_requests_is_planned_by_its_means(partita: Partita, tmp_path: Path):
    """Prompts of 1 to 4,000 tokens and outputs of 1 to 100: their means and longest are the workload's."""
    requests = [(1 + 7 * i % 4000, 1 + 3 * i % 100) for i in range(10_000)]
    file = tmp_path / "trace.csv"
    file.write_text("prompt,output\n" + "".join(f"{p},{o}\n" for p, o in requests), encoding="utf-8")
    found = partita("plan", *SMALL, "--trace", file, "--rate", "1/s", "--json").json
    workload = found["setting"]["workload"]
    assert workload["prompt"] == round(sum(p for p, _ in requests) / 10_000)
    assert workload["output"] == round(sum(o for _, o in requests) / 10_000)
    assert workload["context"] == max(p + o for p, o in requests)
    assert found["traffic"]["requests"] == 10_000
    assert found["server"]["sustained"] is True


# -- what only looks wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "cluster", "chips"),
    [
        ("palm-8b", "tpu-v4:1x1x1", 1),
        ("smollm2-135m", "h100:1x7", 7),  # 3 KV heads on 7 chips
        ("palm-8b", "tpu-v4:13x1x1", 13),
    ],
)
def test_one_chip_and_a_prime_number_of_chips_are_answered(
    model: str, cluster: str, chips: int, partita: Partita
):
    found = partita("plan", model, "--on", cluster, "--json").json
    for phase in ("prefill", "decode"):
        assert found[phase]["chips"] == chips
        assert list(found[phase]["layout"]["mesh"].values()) == [chips]
        memory = found[phase]["memory_bytes_per_chip"]
        assert memory["total"] <= memory["capacity"]
    assert partita("plan", model, "--on", cluster).code == 0


def test_limits_that_only_a_dear_layout_keeps_are_kept(partita: Partita):
    """None of thousands of cheaper pairs keeps them: a chunk beside each step, nearly the highest rate."""
    common = ("plan", *SMALL, "--json")
    found = partita(*common, "--objective", "cost", "--chunk", 256, "--max-tpot", "20ms").json
    steps = [found[phase]["bound"]["step_seconds"] for phase in ("prefill", "decode")]
    assert sum(steps) <= 20e-3
    best = partita(*common, "--objective", "cost").json["server"]["requests_per_second"]
    busy = partita(*common, "--rate", f"{best * 0.995:.3f}/s").json
    assert busy["server"]["requests_per_second"] >= best * 0.995


def test_nothing_is_written_where_something_is_refused(partita: Partita, tmp_path: Path):
    plot, save = tmp_path / "plot.png", tmp_path / "none" / "plan.json"
    error = refused(partita, "plan", *SMALL, "--plot", plot, "--save", save)
    assert error["field"] == "save"
    assert list(tmp_path.iterdir()) == []
    assert partita("plan", *SMALL, "--plot", plot, "--save", tmp_path / "plan.json").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "plot.png"]
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["schema"] == "partita.plan/1"
