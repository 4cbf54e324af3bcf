"""Crossovers against a scan of every value."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.planner.pairs import NAMED, phase_of
from tests.planner.settings import palm, setting

from partita.advice import crossover
from partita.advice.crossover import QUANTITIES, Crossover, Quantity, crossovers, forecast
from partita.cost import prediction
from partita.cost.prediction import Prediction, Setting
from partita.specs import Formats, Workload
from partita.specs.profile import Phase

INT8 = Formats(weights="int8")
PALM_8B = ("palm-8b", "tpu-v4:2x2x2")


def sized(given: Setting, **fields: int) -> Setting:
    own = {name: getattr(given.workload, name) for name in Workload.model_fields}
    if "prompt" in fields:
        own["context"] = max(own["context"], fields["prompt"] + own["output"])
    return replace(given, workload=Workload(**(own | fields)))


def best_at(given: Setting, phase: Phase, layouts: Sequence[str], quantity: Quantity, value: int) -> str:
    """The first of the layouts that fits and is fastest there; the chosen one comes first."""
    field = "prefill_batch" if (quantity, phase) == ("batch", "prefill") else quantity
    there = sized(given, **{field: value})
    found = {name: phase_of(there, phase, name) for name in layouts}
    return min(found, key=lambda name: (not found[name].fits, found[name].step_seconds))


def nearest(
    chosen: Prediction, rivals: Sequence[Prediction], quantity: Quantity, *, up: bool = True
) -> Crossover | None:
    """The crossover of one quantity on one side, pinned down to the exact value."""
    found = crossovers(chosen, rivals, evaluations=1600)
    return next((c for c in found if c.quantity == quantity and (c.value > c.here) == up), None)


CASES = [
    ("prefill", "batch", "ws2d/batch", ["wg-x/batch", "wg-xy/batch", "wg-xyz/batch"], palm(INT8, batch=1)),
    ("prefill", "prompt", "ws2d/batch", ["wg-x/batch", "wg-xyz/batch"], palm(INT8, batch=1)),
    (
        "prefill",
        "prompt",
        "ws1d/heads",
        ["wg-x/batch", "wg-xyz/batch"],
        setting(*PALM_8B, batch=1, prompt=64),
    ),
]


@pytest.mark.parametrize(("phase", "quantity", "mine", "others", "given"), CASES)
def test_the_crossover_is_where_a_scan_finds_it(
    phase: Phase, quantity: Quantity, mine: str, others: list[str], given: Setting
):
    chosen = phase_of(given, phase, mine)
    rivals = [phase_of(given, phase, name) for name in others]
    found = nearest(chosen, rivals, quantity)
    assert found is not None
    assert abs(found.value - found.still) == 1
    # close to it the shorter step changes to and fro, as tokens divide or do not
    scan = range(found.here, found.still * 98 // 100, max(1, found.value // 100))
    best = {best_at(given, phase, [mine, *others], quantity, value) for value in [*scan, found.still]}
    assert best == {mine}
    assert best_at(given, phase, [mine, *others], quantity, found.value) == found.becomes
    assert (found.why, 0 < found.gains < 1) == ("faster", True)


def test_a_crossover_downwards_is_the_largest_smaller_value():
    given = setting(*PALM_8B, batch=4, prompt=64, output=8)
    chosen, rival = (phase_of(given, "decode", f"ws1d/{a}") for a in ("batch", "heads"))
    found = nearest(chosen, [rival], "context", up=False)
    assert found is not None
    assert found.value == found.still - 1 < 72
    layouts = ["ws1d/batch", "ws1d/heads"]
    assert best_at(given, "decode", layouts, "context", found.value) == "ws1d/heads"
    still = {best_at(given, "decode", layouts, "context", value) for value in range(found.still, 73)}
    assert still == {"ws1d/batch"}
    assert "down from context" in str(found)


def test_a_layout_that_no_longer_fits_gives_way():
    """Heads keep every sequence's one KV head on every chip: batch fits more, and is slower here."""
    given = setting(*PALM_8B, batch=8)
    chip = given.cluster.chip.model_copy(update={"hbm_bandwidth": 1e18})  # copies are read for nothing
    free = replace(given, cluster=given.cluster.model_copy(update={"chip": chip}))
    chosen, rival = (phase_of(free, "decode", f"ws1d/{a}") for a in ("heads", "batch"))
    assert chosen.max_batch < rival.max_batch
    found = nearest(chosen, [rival], "batch")
    assert found is not None
    assert (found.value, found.why, found.gains) == (chosen.max_batch + 1, "fits", 0.0)


def test_beyond_what_fits_in_any_layout_nothing_is_better():
    given = setting(*PALM_8B, batch=8)
    chosen, rival = (phase_of(given, "decode", f"{ffn}/batch") for ffn in ("ws2d", "ws1d"))
    rivals = [phase_of(given, "decode", name) for name in ("ws1d/batch", "ws2d/batch")]
    best = min(rivals, key=lambda p: p.step_seconds)
    found = crossovers(best, [chosen, rival])
    most = max(chosen.max_batch, rival.max_batch), max(chosen.max_context, rival.max_context)
    assert all(crossing.value <= (most[0] if crossing.quantity == "batch" else most[1]) for crossing in found)


def test_no_rivals_no_crossover():
    given = palm(INT8, batch=64)
    chosen = phase_of(given, "decode", "ws2d/batch")
    assert crossovers(chosen, []) == []
    assert crossovers(chosen, [chosen]) == []


def test_a_rival_that_is_better_here_is_left_out():
    given = palm(INT8, batch=64)
    chosen, better = phase_of(given, "decode", "wg-xyz/batch"), phase_of(given, "decode", "ws2d/batch")
    assert better.step_seconds < chosen.step_seconds
    assert crossovers(chosen, [better]) == []


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_work_is_capped(phase: Phase, monkeypatch: pytest.MonkeyPatch):
    given = palm(INT8, batch=64, prefill_batch=1)
    rivals = [phase_of(given, phase, name) for name in NAMED]
    chosen = min(rivals, key=lambda p: (not p.fits, p.step_seconds))
    calls: list[Prediction] = []

    def counted(*args):
        calls.append(real(*args))
        return calls[-1]

    real = prediction.predict
    monkeypatch.setattr(prediction, "predict", counted)
    found = crossovers(chosen, rivals, evaluations=120)
    # each of four sides may finish the step it is in, and prices the last value once more
    assert len(calls) <= 120 + 4 * 2 * (crossover.RIVALS + 1)
    assert bool(found) == (phase == "prefill")
    for crossing in found:
        assert crossing.phase == phase
        assert crossing.quantity in QUANTITIES[phase]
        assert json.loads(json.dumps(crossing.as_json()))["value"] == crossing.value
        assert crossing.becomes in str(crossing)


def test_a_forecast_at_no_growth_is_the_step_itself():
    """So every operation of the step is in it once."""
    for phase in ("prefill", "decode"):
        given = palm(INT8, batch=64, prefill_batch=4)
        for name in NAMED:
            prediction = phase_of(given, phase, name)
            for quantity in QUANTITIES[phase]:
                seconds, held = forecast(prediction, quantity, np.ones(1))
                assert seconds[0] == pytest.approx(prediction.step_seconds)
                assert held[0] == pytest.approx(prediction.memory_bytes["total"])


def test_a_forecast_of_a_batch_that_stays_divided_is_exact():
    prediction = phase_of(palm(INT8, batch=64), "decode", "ws2d/batch")
    larger = phase_of(palm(INT8, batch=256), "decode", "ws2d/batch")
    seconds, held = forecast(prediction, "batch", np.array([4.0]))
    assert seconds[0] == pytest.approx(larger.step_seconds)
    assert held[0] == pytest.approx(larger.memory_bytes["total"], rel=1e-6)
