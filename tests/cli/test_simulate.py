"""`partita simulate`: its JSON by the schema, its table, its files, and one line for what is wrong."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Partita
from tests.schemas import json_schema, undocumented, validator

LLAMA = ("simulate", "llama-3.1-8b", "--on", "h100:1x2", "--slots", 32)
LAYOUT = ("--ffn", "ws1d", "--attention", "heads")
SHORT = ("--requests", 60, "--prompt", "64,512", "--output", "4,16")


def test_the_json_is_as_documented(partita: Partita):
    limits = ("--max-ttft", "100ms", "--max-tpot", "9ms")
    every = "decode-first,prefill-first,mixed,switching"
    found = partita(*LLAMA, *LAYOUT, *SHORT, "--rate", "40/s", "--policy", every, *limits, "--json").json
    validator("simulation-1").validate(found)
    assert list(undocumented(found, json_schema("simulation-1"))) == []
    assert [policy["policy"] for policy in found["policies"]] == every.split(",")
    assert (found["by"], found["profile"]) == ("estimate", "h100")
    assert found["load"] | {"mean_prompt": 0, "mean_output": 0} == {
        "kind": "open",
        "requests": 60,
        "skipped": 0,
        "rate": 40.0,
        "arrivals": "poisson",
        "clients": None,
        "seed": 0,
        "mean_prompt": 0,
        "mean_output": 0,
        "mean_prefix": 0.0,
    }
    for policy in found["policies"]:
        assert policy["goodput_requests_per_second"] == pytest.approx(
            policy["good_share"] * policy["requests_per_second"]
        )


def test_a_lone_client_sees_what_predict_says(partita: Partita):
    """One at a time: TTFT is the prefill, TPOT the mean decode step, by the bound and by the estimate."""
    sizes = ("--prompt", 1000, "--output", 33)
    given = ("llama-3.1-8b", "--on", "h100:1x2", *LAYOUT, *sizes)
    for by in ("bound", "estimate"):
        (policy,) = partita(
            "simulate",
            *given,
            "--clients",
            1,
            "--requests",
            4,
            "--policy",
            "decode-first",
            "--by",
            by,
            "--json",
        ).json["policies"]
        prefill = partita("predict", *given, "--phase", "prefill", "--json").json[by]["step_seconds"]
        decode = partita("predict", *given[:-1], 32, "--phase", "decode", "--context", 1016, "--json").json[
            by
        ]["total_seconds"]
        assert policy["ttft_seconds"]["p50"] == pytest.approx(prefill, rel=1e-3)
        assert policy["tpot_seconds"]["p50"] == pytest.approx(decode / 32, rel=1e-3)
        assert policy["requests"] == 3  # the first of the client's does not count


def test_a_saved_plan_is_simulated_with_its_own_batch(partita: Partita, tmp_path: Path):
    saved = tmp_path / "plan.json"
    plan = ("plan", "smollm2-135m", "--on", "tpu-v4:1x2x2", "--prompt", 128, "--output", 8, "--batch", 8)
    assert partita(*plan, "--save", saved).code == 0
    found = partita("simulate", saved, "--clients", 8, "--requests", 40, *SHORT[2:], "--json").json
    assert found["policies"][0]["server"]["slots"] == 8
    assert (
        found["decode"]
        == json.loads(saved.read_text())["decode"]["layout"]["ffn"]
        + "/"
        + (json.loads(saved.read_text())["decode"]["layout"]["attention"])
    )
    refused = partita("simulate", saved, "--rate", "1/s", "--ffn", "ws1d")
    assert (refused.code, "ffn" in refused.err, "a plan has its own" in refused.err) == (2, True, True)


def test_a_trace_is_replayed_or_drawn_from(partita: Partita, tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival,prompt,output\n2024-05-10 00:00:01.5,100,2\n"
        "2024-05-10 00:00:00,200,3\n2024-05-10T00:00:04,300,4\n"
    )
    run = (*LLAMA, *LAYOUT, "--trace", trace, "--policy", "decode-first")
    replayed = partita(*run, "--json").json
    assert (replayed["load"]["kind"], replayed["load"]["mean_prompt"]) == ("trace", 200.0)
    assert replayed["policies"][0]["seconds"] == pytest.approx(4.0, abs=0.1)
    drawn = partita(*run, "--rate", "5/s", "--requests", 30, "--json").json
    assert (drawn["load"]["kind"], drawn["load"]["requests"]) == ("open", 30)
    trace.write_text("arrival,prompt,output\nnoon,100,2\n")
    refused = partita(*run)
    assert (refused.code, "line 2, arrival: 'noon'" in refused.err) == (2, True)


def test_a_table_and_a_plot_are_for_people(partita: Partita, tmp_path: Path):
    picture = tmp_path / "load.svg"
    shown = partita(
        *LLAMA, *LAYOUT, *SHORT, "--rate", "40/s", "--plot", picture, "--policy", "switching,mixed:4096"
    )
    assert (shown.code, shown.err) == (0, "")
    for text in ("TTFT, mean", "mixed:4096", "output tokens a second", "profile h100", "60 requests counted"):
        assert text in shown.out
    assert "slots in use over time" in picture.read_text()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("rate", ()),
        ("clients", ("--rate", "3/s", "--clients", 3)),
        ("clients", ("--clients", 61)),
        ("requests", ("--rate", "3/s", "--requests", 0)),
        ("arrivals", ("--rate", "3/s", "--arrivals", "often")),
        ("policy", ("--rate", "3/s", "--policy", "random")),
        ("policy", ("--rate", "3/s", "--policy", "mixed,mixed")),
        ("budget", ("--rate", "3/s", "--policy", "decode-first:8")),
        ("memory-share", ("--rate", "3/s", "--memory-share", 0.01)),
        ("memory-share", ("--rate", "3/s", "--memory-share", 1.5)),
        ("skip", ("--rate", "3/s", "--skip", 60)),
        ("trace", ("--trace", "nowhere.csv")),
        ("plot", ("--rate", "3/s", "--plot", "x.pdf")),
        ("by", ("--rate", "3/s", "--by", "guess")),
        ("prefill-ffn", ("--rate", "3/s", "--prefill-ffn", "ws1d")),
    ],
)
def test_what_is_wrong_is_said_in_one_line(partita: Partita, field: str, given: tuple):
    layout = () if field in ("trace", "prefill-ffn") else LAYOUT
    requests = () if "--requests" in given or "--trace" in given else SHORT[:2]
    ran = partita(*LLAMA, *layout, *requests, *given)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {field}")
    assert ran.err.count("\n") == 1


def test_a_plan_at_a_rate_says_what_users_would_see(partita: Partita):
    given = ("plan", "smollm2-135m", "--on", "tpu-v4:1x2x2", "--prompt", 256, "--output", 16, "--batch", 8)
    found = partita(*given, "--rate", "20/s", "--json").json
    validator("plan-1").validate(found)
    assert list(undocumented(found, json_schema("plan-1"))) == []
    said = found["simulation"]
    assert (said["requests"], said["requests_per_second"]) == (2000, pytest.approx(20, rel=0.1))
    # nobody is faster than a prefill of one prompt and steps that decode alone
    assert said["ttft_seconds"]["p50"] > 0.5 * found["prefill"]["bound"]["step_seconds"] / 8
    assert said["slots"]["most"] <= 8
    shown = partita(*given, "--rate", "20/s").out
    assert "simulated at that rate" in shown
    assert partita(*given, "--json").json["simulation"] is None
    assert partita(*given, "--samples", 2, "--rate", "20/s", "--json").json["simulation"] is None
