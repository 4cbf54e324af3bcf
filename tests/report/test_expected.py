"""Estimates for people: parts that add up, one sentence on what is extrapolated."""

from dataclasses import replace

import pytest
from tests.planner.pairs import phase_of
from tests.planner.settings import palm, setting

from partita.cost.prediction import Prediction, Setting, predict
from partita.report.expected import NO_PROFILE, note, parts, phase_text, step_text
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Constant, Formats, Profile, Workload, catalogue_model, format_range, parse_cluster
from partita.specs.catalogue import profile as catalogue_profile

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
    estimate, each = found.estimate, parts(found)
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
    assert sum(parts(found).values()) == pytest.approx(found.step_seconds, rel=1e-12)


def test_one_microbatch_waits_two_thirds_of_three_stages():
    each = parts(staged(256))
    waits = each.pop("waiting for other stages")
    assert waits == pytest.approx(2 * sum(each.values()), rel=0.1)  # hops and the last stage's logits aside


def test_without_a_profile_there_are_no_parts_and_it_is_said():
    found = phase_of(UNSEEN, "decode", "ws2d/batch")
    assert parts(found) == {}
    assert note([found]).plain == NO_PROFILE


def test_what_is_extrapolated_is_one_sentence_and_all_of_it():
    inside = phase_of(palm(Formats(weights="int8"), batch=64, context=2048), "decode", "ws2d/batch")
    assert inside.estimate is not None
    assert inside.estimate.interval.extrapolated == ()
    assert "Nothing is extrapolated" in note([inside]).plain
    given = palm(batch=4, prompt=100_000)
    outside = [phase_of(given, phase, "wg-x/batch") for phase in ("prefill", "decode")]
    text = note(outside).plain
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
    text = note([with_profile(known)]).plain
    assert f"a 90% range; of measurements left out of its fit {known.coverage[-1]:.0%} lay in theirs" in text
    unchecked = note([with_profile(known.model_copy(update={"coverage": (), "left_out": {}}))]).plain
    assert f"a 90% range, made of {len(known.residuals)} measurements left out of its fit" in unchecked


def test_a_profile_that_nothing_is_known_of_claims_nothing():
    made = Profile(name="made", source="here", constants={"matmul_share": Constant(value=0.5, fixed="given")})
    text = note([with_profile(made)]).plain
    assert "nothing was left out of its fit, so the range is a guess" in text
    assert "What it was fitted to is not said" in text
    assert "Nothing is extrapolated" not in text
    assert "9" not in text


def test_a_range_is_not_below_the_bound():
    """Of a profile so near the bound that its range would reach below."""
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
