"""Estimates beside the clock: what is made of given times, and a tiny model run; no time is asserted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import pytest
from tests.checkpoints.tiny_gguf import TINY

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.measure import clock as module
from partita.measure.calibrate.machine import machine
from partita.measure.clock import ClockedStep, PhaseClock, clock
from partita.measure.stopwatch import Timed
from partita.planner.pair import expected
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_roles
from partita.specs import Chip, Cluster, Constant, Formats, PhysicalAxis, Profile, Workload

MESH = Mesh.of((2,))
PROFILE = Profile(
    name="made up",
    source="made up",
    constants={
        "matmul_share": Constant(value=0.4, fixed="made up"),
        "step_seconds": Constant(value=1e-4, fixed="made up"),
        "switch/message_seconds": Constant(value=2e-5, fixed="made up"),
    },
    compares=True,
)
CHIP = Chip(name="thread", peak_flops={"f32": 1e11}, hbm_bytes=2**30, hbm_bandwidth=1e10)
CLUSTER = Cluster(
    name="here",
    chip=CHIP,
    fabric=(PhysicalAxis(kind="switch", size=2, link_bandwidth=5e9),),
    profile=PROFILE,
)
F32 = Formats(weights="f32", activations="f32", kv="f32")
SETTING = Setting(TINY, CLUSTER, MESH, F32, Workload(prompt=4, output=1, batch=2, context=8))


def predicted(phase, ffn: str, attention: str, setting: Setting = SETTING) -> Prediction:
    return predict(setting, phase, parse_roles(ffn, attention, MESH.axes))


LAYOUTS = [
    predicted("decode", ffn, attention) for ffn in ("ws1d", "wg-x") for attention in ("heads", "batch")
]
LAYOUTS.sort(key=lambda each: expected(each).step_seconds)


def run(prediction: Prediction, measured: float, slower: float = 1.0) -> ClockedStep:
    """A step on a machine whose probe ran so much slower than when it was calibrated."""
    return ClockedStep(prediction, Timed(measured, measured * 1.1, 3), slower)


def phase(*measured: float) -> PhaseClock:
    """Steps of layouts by rising estimate."""
    return PhaseClock("decode", tuple(run(p, m) for p, m in zip(LAYOUTS, measured, strict=False)))


ESTIMATED = [expected(each).step_seconds for each in LAYOUTS]


def test_the_layouts_of_these_tests_are_told_apart():
    assert all(later > before for before, later in pairwise(ESTIMATED))


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_times_are_not_corrected_by_how_fast_the_machine_was_at_calibration(slower: float):
    found = run(LAYOUTS[0], ESTIMATED[0] / 1.25, slower)
    assert found.measured_seconds == pytest.approx(ESTIMATED[0] / 1.25)
    assert found.error == pytest.approx(0.25)


def test_the_median_is_of_the_sizes_of_errors():
    a, b, c, _ = ESTIMATED
    assert phase(a / 1.1, b / 0.7, c / 1.2).median_error == pytest.approx(0.2)
    assert phase(a / 1.1, b / 0.7).median_error == pytest.approx(0.2)
    assert phase(*ESTIMATED).median_error == 0


@pytest.mark.parametrize(
    ("measured", "rank"),
    [
        ((1, 2, 3, 4), 1.0),
        ((4, 3, 2, 1), -1.0),
        ((1, 3, 2, 4), 0.8),  # 1 - 6 * (1 + 1) / (4 * 15)
        ((1, 2, 2, 4), 4.5 / (5 * 4.5) ** 0.5),  # ranks 1, 2.5, 2.5, 4: Pearson's of them
        ((1, 2, 3), 1.0),
        ((1, 3, 2), 0.5),
    ],
)
def test_the_rank_correlation_is_spearmans_ties_sharing_a_rank(measured: tuple[float, ...], rank: float):
    assert phase(*measured).rank_correlation == pytest.approx(rank)


@pytest.mark.parametrize("measured", [(1.0,), (1.0, 2.0), (1.0, 1.0, 1.0)])
def test_of_fewer_than_three_or_of_one_time_there_is_no_rank_correlation(measured: tuple[float, ...]):
    assert phase(*measured).rank_correlation is None
    same = PhaseClock("decode", tuple(run(LAYOUTS[0], m) for m in (1.0, 2.0, 3.0)))
    assert same.rank_correlation is None


def test_the_pick_is_what_the_estimate_prefers_and_may_lose_to_another():
    found = phase(3.0, 2.0, 2.5, 9.0)
    assert found.pick is found.runs[0]
    assert found.fastest is found.runs[1]
    assert found.pick_slower_by == pytest.approx(0.5)
    turned = replace(found, runs=found.runs[::-1])
    assert (turned.pick, turned.fastest) == (found.pick, found.fastest)
    assert phase(1.0, 2.0, 3.0).pick_slower_by == 0


def test_inside_is_the_share_of_times_in_their_intervals():
    low, high = run(LAYOUTS[0], 1.0).interval
    assert 0 < low < ESTIMATED[0] < high
    assert phase(ESTIMATED[0], ESTIMATED[1], 1e3, 1e-9).inside == 0.5
    edges = PhaseClock("decode", tuple(run(LAYOUTS[0], m) for m in (low, high, low * 0.99, high * 1.01)))
    assert edges.inside == 0.5


# -- which are timed together ---------------------------------------------------------------------------


def grouped(predictions: list[Prediction], room: int) -> list[list[Prediction]]:
    """Groups on devices with so many bytes, half of which may be used."""
    here = replace(machine(jax.devices()[:2]), memory_bytes=2 * room)
    return list(module._groups(predictions, here))


def needed(predictions: list[Prediction]) -> int:
    """Bytes on a chip: the weights once, and each one's cache."""
    return predictions[0].memory_bytes["weights"] + sum(each.memory_bytes["kv"] for each in predictions)


def test_layouts_are_timed_together_while_their_weights_fit_and_by_storage():
    one = [predicted("decode", "ws1d", "heads"), predicted("decode", "ws1d", "batch")]
    other = [predicted("decode", "x=e", "batch")]
    assert one[0].layout.storage == one[1].layout.storage != other[0].layout.storage
    mixed = [one[0], other[0], one[1]]
    both = needed(one) + needed(other)
    assert grouped(mixed, both) == [[*one, *other]]
    assert grouped(mixed, both - 1) == [one, other]
    assert grouped(mixed, 1) == [one, other]  # of one storage all, whatever there is
    assert grouped([], 1) == []


# -- a model run ----------------------------------------------------------------------------------------


def test_a_tiny_model_is_timed_in_every_layout_and_both_phases():
    asked = [predicted("decode", "ws1d", "heads"), predicted("prefill", "wg-x", "batch")]
    asked += [predicted("prefill", "ws1d", "heads"), predicted("decode", "x=e", "batch")]
    told: list[tuple[str, int, int]] = []
    found = clock(asked, jax.devices()[:2], 1.0, lambda *news: told.append(news))
    assert [each.phase for each in found] == ["prefill", "decode"]
    assert [[r.prediction for r in each.runs] for each in found] == [
        [asked[1], asked[2]],
        [asked[0], asked[3]],
    ]
    for each in found:
        for r in each.runs:
            assert r.slower == 1  # nobody timed the probe of this profile
            assert r.measured_seconds == r.timed.seconds > 0
            assert 3 <= r.timed.visits <= 15
            assert r.estimated_seconds > r.prediction.step_seconds
        assert each.rank_correlation is None
    compiling = [(done, of) for what, done, of in told if what.startswith("compiling")]
    assert compiling == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [what for what, *_ in told][:1] == ["compiling decode ws1d/heads"]
    assert all(0 <= done <= of for _, done, of in told)


def test_how_much_slower_than_calibrated_is_of_the_probe():
    """Against a probe that took an hour then, any machine is fast now."""
    profile = PROFILE.model_copy(update={"probe_seconds": 3600.0})
    setting = replace(SETTING, cluster=CLUSTER.model_copy(update={"profile": profile}))
    (found,) = clock([predicted("decode", "ws1d", "heads", setting)], jax.devices()[:2], 1.0)
    (only,) = found.runs
    assert 0 < only.slower < 0.1
    assert only.measured_seconds == only.timed.seconds


def test_without_a_profile_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "Steps", lambda *_: pytest.fail("compiled"))
    bare = replace(SETTING, cluster=CLUSTER.model_copy(update={"profile": None}))
    with pytest.raises(InputError, match="no efficiency profile") as caught:
        clock([predicted("decode", "ws1d", "heads", bare)], jax.devices()[:2], 1.0)
    assert caught.value.field == "by"
