"""Predictions as tables, and what is known of their estimates: what a reader is shown, with its units."""

from dataclasses import replace

import pytest
from tests.planner.pairs import pair_of, phase_of
from tests.planner.settings import palm, setting
from tests.report.shown import text_of

from partita.cost.prediction import Prediction, Setting, predict
from partita.report.predictions import (
    NO_PROFILE,
    attention_split,
    estimate_note,
    estimated_parts,
    phase_text,
    prediction_table,
    step_text,
)
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import (
    Constant,
    Formats,
    Profile,
    Workload,
    catalogue_model,
    format_range,
    format_seconds,
    parse_cluster,
)
from partita.specs.catalogue import profile as catalogue_profile

SMALL = setting("palm-8b", "tpu-v4:2x2x2", prompt=512, output=16, batch=32)


def row(text: str, name: str) -> list[str]:
    """The cells of a row, its name left out; two spaces part them."""
    line = next(line for line in text.splitlines() if line.startswith(name))
    return [cell.strip() for cell in line.removeprefix(name).split("  ") if cell.strip()]


def test_memory_is_shown_by_part_and_adds_up():
    decode = phase_of(SMALL, "decode", "ws1d/batch")
    memory = decode.memory_bytes
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "activations", "runtime"))
    # on 8 chips: 8.63B parameters, and 32 sequences of 528 tokens with 32 x 2 x 256 elements, of 2 bytes
    # for each of 32 tokens 32,016 logits and 4096 numbers they come from, 512 of the residual, and two
    # whole numbers; for 4 tokens 256 sines and cosines
    activations = 32 * (4 * 32_016 + 2 * 4096 + 2 * 512 + 2 * 4) + 4 * 4 * 256
    assert memory["activations"] == activations
    parts = "weights 2.16 GB, kv 69.2 MB, activations 4.4 MB, runtime 1.34 GB"
    assert row(text_of(prediction_table([decode])), "memory per chip") == [f"3.57 GB of 34.4 GB: {parts}"]


@pytest.mark.parametrize(("model", "shown"), [("smollm2-135m", True), ("palm-8b", False)])
def test_padding_is_shown_where_there_is_any(model: str, shown: bool):
    given = setting(model, "tpu-v4:2x2x2", prompt=512, output=16, batch=8)
    found = phase_of(given, "decode", "ws1d/heads")
    text = text_of(prediction_table([found]))
    assert ("heads 9 -> " in text) == ("parameters more" in text) == shown
    assert all(f"{dim} {sizes['from']} -> {sizes['to']}" in text for dim, sizes in found.padding.items())


def test_each_phase_has_a_column_and_every_row_both():
    pair = pair_of(SMALL, "wg-x/heads", "ws2d/batch")
    found = [pair.prefill, pair.decode]
    text = text_of(prediction_table(found))
    assert row(text, "layout") == ["wg-x/heads", "ws2d/batch"]
    assert row(text, "batch") == ["32", "32"]
    assert row(text, "tokens a step") == [f"{32 * 512:,}", "32"]
    assert row(text, "step, bound") == [format_seconds(p.step_seconds) for p in found]
    for absent in ("stages", "waiting for other stages", "prompt  "):
        assert absent not in text


def test_an_estimate_stands_beside_the_bound_and_neither_is_the_other():
    found = [phase_of(SMALL, phase, "ws2d/batch") for phase in ("prefill", "decode")]
    text = text_of(prediction_table(found))
    mfu, cost = row(text, "MFU, estimated"), row(text, "chip-ms per token, estimated")
    for p, steps, mine, costs in zip(found, row(text, "step, estimated"), mfu, cost, strict=True):
        assert p.estimate is not None
        assert p.estimate.step_seconds > p.step_seconds
        assert steps.startswith(f"{format_seconds(p.estimate.step_seconds)} (")
        tokens, chips = p.tokens_per_step, 8
        done, ideal = p.needed_flops, chips * 275e12
        shares = [done / (ideal * seconds) for seconds in (p.estimate.step_seconds, p.step_seconds)]
        assert mine == f"{shares[0]:.1%} (at most {shares[1]:.1%})"
        spent = [1e3 * chips * seconds / tokens for seconds in (p.estimate.step_seconds, p.step_seconds)]
        assert costs == f"{spent[0]:.3g} (at least {spent[1]:.3g})"


def test_without_a_profile_there_are_bounds_and_no_word_of_estimates():
    given = setting("palm-8b", "tpu-v5p:2x2x2", prompt=512, output=16, batch=32)
    found = phase_of(given, "decode", "ws2d/batch")
    assert found.estimate is None
    text = text_of(prediction_table([found]))
    assert "estimate" not in text
    share = found.needed_flops / (8 * 459e12 * found.step_seconds)
    assert row(text, "MFU, at most") == [f"{share:.1%}"]
    assert row(text, "chip-ms per token, at least") == [f"{1e3 * 8 * found.step_seconds / 32:.3g}"]


@pytest.mark.parametrize(
    ("layout", "splits"),
    [
        ("ws2d/batch", "batch over xyz"),
        ("ws2d/heads", "query heads over yzx"),
        ("ws2d/context", "context over xyz"),
        ("ws2d/x=context,y=heads,z=batch", "batch over z, context over x, query heads over y"),
        ("ws2d/x=none,y=none,z=none", "nothing"),
    ],
)
def test_what_attention_splits_is_named_by_dim_and_axes(layout: str, splits: str):
    assert attention_split(phase_of(SMALL, "decode", layout)) == splits


def test_a_cached_prefix_and_chunks_are_said():
    given = palm(batch=4, prompt=2048, prefix=512, chunk=1024)
    text = text_of(prediction_table([phase_of(given, "prefill", "ws2d/batch")]))
    assert row(text, "prompt") == ["512 of 2,048 tokens cached, 1,536 read in 2 steps"]


# -- estimates ---------------------------------------------------------------------------------------------

SECONDS = ("operation_seconds", "communication_seconds", "layer_seconds", "host_seconds", "idle_seconds")
UNSEEN = setting("palm-8b", "tpu-v5p:2x2x2", batch=4)


def staged(batch: int) -> Prediction:
    """Three stages of eight, of a runtime that cuts a batch only where the stages divide it."""
    on, workload = parse_cluster("a100-80g:3x8"), Workload(prompt=20, output=8, batch=batch)
    given = Setting(catalogue_model("mt-nlg-530b"), on, Mesh.of((1, 8)), Formats(), workload, 3)
    return predict(given, "decode", parse_layout("ws1d/heads", "xy"))


def test_of_step_and_of_phase():
    found = phase_of(palm(batch=64, context=2112), "decode", "ws2d/batch").estimate
    assert found is not None
    assert step_text(found) == format_range(found.step_seconds, found.step_interval)
    assert phase_text(found) == format_range(found.total_seconds, found.total_interval)
    assert step_text(None) == phase_text(None) == ""


@pytest.mark.parametrize(
    ("found", "waits"),
    [
        (phase_of(palm(batch=64), "decode", "ws2d/batch"), False),
        (phase_of(palm(batch=4), "prefill", "wg-xyz/batch"), False),
        (phase_of(setting("llama-3-8b", "h100:1x8", batch=8), "decode", "ws1d/heads"), False),
        (staged(25), True),
        (staged(256), True),  # cut in one by the runtime, in three by the bound
    ],
)
def test_the_parts_add_up_to_the_step(found: Prediction, waits: bool):
    estimate, each = found.estimate, estimated_parts(found)
    assert estimate is not None
    assert sum(each.values()) == pytest.approx(estimate.step_seconds, rel=1e-12)
    assert all(seconds >= 0 for seconds in each.values())
    assert each["communication"] == pytest.approx(float(estimate.parts.communication_seconds))
    written = found.as_json()["estimate"]
    assert list(each.values()) == [seconds for key, seconds in written.items() if key in SECONDS]
    assert (each["waiting for other stages"] > 0) == waits


def test_a_step_held_at_the_bound_is_made_of_it():
    """A profile that changes nothing, on links that work while it computes."""
    free = Profile(name="free", source="here", constants={"hidden_share": Constant(value=1, fixed="given")})
    given = palm(batch=64)
    cluster = given.cluster.model_copy(update={"profile": free})
    found = phase_of(replace(given, cluster=cluster), "decode", "ws2d/batch")
    assert found.estimate is not None
    assert float(found.estimate.parts.operation_seconds) < found.step_seconds == found.estimate.step_seconds
    assert sum(estimated_parts(found).values()) == pytest.approx(found.step_seconds, rel=1e-12)


def test_one_microbatch_waits_two_thirds_of_three_stages():
    each = estimated_parts(staged(256))
    waits = each.pop("waiting for other stages")
    assert waits == pytest.approx(2 * sum(each.values()), rel=0.1)  # hops and the last stage's logits aside


def test_without_a_profile_there_are_no_parts_and_it_is_said():
    found = phase_of(UNSEEN, "decode", "ws2d/batch")
    assert estimated_parts(found) == {}
    assert estimate_note([found]).plain == NO_PROFILE


def test_what_is_extrapolated_is_one_sentence_and_all_of_it():
    inside = phase_of(palm(Formats(weights="int8"), batch=64, context=2048), "decode", "ws2d/batch")
    assert inside.estimate is not None
    assert inside.estimate.interval.extrapolated == ()
    assert "Nothing is extrapolated" in estimate_note([inside]).plain
    given = palm(batch=4, prompt=100_000)
    outside = [phase_of(given, phase, "wg-x/batch") for phase in ("prefill", "decode")]
    text = estimate_note(outside).plain
    assert "profile tpu-v4" in text
    for p in outside:
        assert p.estimate is not None
        sentences = p.estimate.interval.extrapolated
        assert sentences
        assert f"{p.phase} ({'; '.join(sentences)})" in text
    assert text.count("Extrapolated") == 1


def with_profile(profile: Profile) -> Prediction:
    given = palm(batch=64)
    cluster = given.cluster.model_copy(update={"profile": profile})
    return phase_of(replace(given, cluster=cluster), "decode", "ws2d/batch")


def test_what_is_known_of_a_range_is_said():
    known = catalogue_profile("tpu-v4")
    text = estimate_note([with_profile(known)]).plain
    assert (
        f"a 90% range; {known.coverage[-1]:.0%} of the measurements left out of its fit lay in theirs" in text
    )
    unchecked = estimate_note([with_profile(known.model_copy(update={"coverage": (), "left_out": {}}))]).plain
    assert f"a 90% range, from {len(known.residuals)} measurements left out of its fit" in unchecked


def test_a_profile_that_nothing_is_known_of_claims_nothing():
    made = Profile(name="made", source="here", constants={"matmul_share": Constant(value=0.5, fixed="given")})
    text = estimate_note([with_profile(made)]).plain
    assert "nothing was left out of its fit, so the range is a guess" in text
    assert "What it was fitted to is not said" in text
    assert "Nothing is extrapolated" not in text
    assert "9" not in text


def test_a_range_is_not_below_the_bound():
    """A prediction by a profile so near the bound that its range would reach below."""
    near = Profile(
        name="near", source="here", constants={"matmul_share": Constant(value=0.99, fixed="given")}
    )
    found = with_profile(near)
    estimate = found.estimate
    assert estimate is not None
    assert estimate.step_seconds * estimate.interval.low < found.step_seconds
    assert estimate.step_interval[0] == found.step_seconds
    assert estimate.total_interval[0] == found.total_seconds
    assert found.as_json()["estimate"]["interval"][0] == found.step_seconds
