"""The glossary: whole, and true of what is computed."""

import json

import pytest
from tests.planner.pairs import pair_of
from tests.planner.settings import palm
from tests.report.shown import text_of

from partita.cli.glossary import command
from partita.planner.pair import OBJECTIVES, Pair
from partita.report.glossary import glossary, glossary_json, glossary_table
from partita.specs import Formats

WORDS = {entry.term: entry for entry in glossary()}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return pair_of(palm(Formats(weights="int8"), batch=64, prefill_batch=16), "ws2d/batch", "ws2d/heads")


PRINTED = [
    "TTFT",
    "TPOT",
    "MFU",
    "latency",
    "throughput",
    "bound",
    "estimate",
    "profile",
    "interval",
    "extrapolated",
    "calibrate",
    "switch",
    "padding",
    "stages",
    "storage",
]


@pytest.mark.parametrize("term", [*PRINTED, "cost per token", "cost per output token"])
def test_the_words_that_are_printed_are_defined(term: str):
    assert len(WORDS[term].definition) > 20


def test_no_word_is_defined_twice():
    assert len(WORDS) == len(glossary()) > 40


def test_all_of_it_is_printed_and_the_same_in_json(capsys: pytest.CaptureFixture[str]):
    text = text_of(glossary_table())
    assert all(term in text for term in WORDS)
    command(json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == glossary_json()
    assert printed["schema"] == "partita.glossary/1"
    assert [entry["term"] for entry in printed["terms"]] == list(WORDS)


def test_a_figure_has_a_unit_that_is_known():
    units = {entry.unit for entry in glossary()}
    known = {
        "",
        "seconds",
        "chip-seconds",
        "tokens/s",
        "requests/s",
        "tokens",
        "sequences",
        "bytes",
        "share",
        "currency",
    }
    assert units <= known


def test_objectives_are_named_in_their_definition():
    assert all(objective in WORDS["objective"].definition for objective in OBJECTIVES)


# -- each definition, computed as it says ---------------------------------------------------------------


def test_ttft_is_one_whole_prefill_without_the_switch(pair: Pair):
    assert pair.reshard_seconds > 0
    assert pair.ttft_seconds == pair.prefill.total_seconds


def test_latency_is_prefill_switch_and_every_step_on_the_cache_of_its_time(pair: Pair):
    assert pair.latency_seconds == pair.ttft_seconds + pair.reshard_seconds + pair.decode.total_seconds
    workload = pair.decode.setting.workload
    # no step is longer than TPOT, which is on the whole context
    assert pair.decode.total_seconds < workload.output * pair.decode.step_seconds


def test_costs_are_chips_times_time_over_tokens(pair: Pair):
    decode, workload = pair.decode, pair.decode.setting.workload
    for phase, tokens in ((decode, 64), (pair.prefill, 16 * 2048)):
        assert phase.bound_chip_seconds_per_token == pytest.approx(64 * phase.step_seconds / tokens)
        assert phase.estimate is not None
        assert phase.chip_seconds_per_token == pytest.approx(64 * phase.estimate.step_seconds / tokens)
    rounds = 4 * (pair.prefill.total_seconds + pair.reshard_seconds)
    everything = 64 * (rounds + decode.total_seconds)
    assert pair.chip_seconds_per_output_token == pytest.approx(everything / (64 * workload.output))


def test_mfu_is_of_the_flops_that_the_model_needs(pair: Pair):
    """Two for every number of a matrix and every token, four for every head, position and part of a head."""
    decode, setting = pair.decode, pair.decode.setting
    model, peak = setting.model, setting.cluster.chip.peak_flops["bf16"]
    block = model.d_model * (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    matrices = model.layers * (block + 3 * model.d_model * model.d_ff) + model.d_model * model.vocabulary
    attention = 4 * model.layers * model.heads * model.head_dim * setting.workload.context
    needed = 64 * (2 * matrices + attention)
    assert decode.needed_flops == needed
    work = needed / (64 * peak)  # seconds at peak
    assert decode.paper_mfu == pytest.approx(2 * model.parameters / peak / decode.step_seconds)
    assert decode.bound_mfu == pytest.approx(work / decode.step_seconds)
    assert decode.estimate is not None
    assert decode.mfu == pytest.approx(work / decode.estimate.step_seconds)
    assert decode.mfu < decode.bound_mfu


def test_a_step_is_the_larger_of_compute_and_memory_and_then_communication(pair: Pair):
    bound = pair.decode.bound
    whole = max(bound.compute_seconds, bound.memory_seconds) + bound.communication_seconds
    assert pair.decode.step_seconds == pytest.approx(float(whole))


def test_memory_is_the_sum_of_its_parts(pair: Pair):
    memory = pair.decode.memory_bytes
    parts = {part: size for part, size in memory.items() if part not in ("total", "capacity")}
    assert set(parts) == {"weights", "kv", "activations", "runtime"}
    assert sum(parts.values()) == memory["total"]
