"""Comparisons of two plans: what differs, and by how much, against the plans themselves."""

import json
from dataclasses import dataclass, replace

import pytest
from tests.planner.pairs import pair_of
from tests.planner.settings import palm

from partita.advice.compare import ComparedFigure, Comparison, compare
from partita.cost.prediction import Prediction
from partita.planner.pair import Pair
from partita.specs import Formats

INT8 = Formats(weights="int8")


@dataclass(frozen=True)
class Held:
    """A pair as a saved plan gives it."""

    pair: Pair

    def predictions(self) -> tuple[Prediction, Prediction]:
        return self.pair.prefill, self.pair.decode


def compared(a: Pair, b: Pair) -> Comparison:
    return compare(Held(a), Held(b))


@pytest.fixture(scope="module")
def pairs() -> tuple[Pair, Pair]:
    given = palm(INT8, batch=64, prefill_batch=1)
    return pair_of(given, "ws2d/heads", "ws2d/batch"), pair_of(given, "ws2d/heads")


def test_a_plan_is_the_same_as_itself(pairs: tuple[Pair, Pair]):
    found = compared(pairs[0], pairs[0])
    assert found.setting == {}
    assert all(figure.winner is None for figure in found.figures)
    assert found.layouts["decode"] == ("ws2d/batch", "ws2d/batch")


def test_two_layouts_differ_in_their_figures_alone(pairs: tuple[Pair, Pair]):
    a, b = pairs
    found = compared(a, b)
    assert found.setting == {}
    assert found.layouts == {"prefill": ("ws2d/heads",) * 2, "decode": ("ws2d/batch", "ws2d/heads")}
    tpot = found.figure("tpot")
    assert (tpot.a, tpot.b, tpot.winner) == (a.decode.step_seconds, b.decode.step_seconds, "a")
    assert tpot.change == pytest.approx(b.decode.step_seconds / a.decode.step_seconds - 1)
    assert found.figure("context").winner == "a"
    assert found.figure("context").a == a.max_context
    assert found.figure("latency").b == b.latency_seconds
    assert found.figure("cost").a == a.chip_seconds_per_output_token
    assert found.figure("decode_mfu").b == b.decode.bound_mfu
    held = {f.name.removeprefix("decode_memory_"): f.a for f in found.figures if "decode_memory" in f.name}
    live = a.memory["decoding"]
    assert held["kv"] == live.kv == a.decode.memory_bytes["kv"]
    assert held["total"] == live.total <= held["capacity"] == a.decode.setting.capacity_bytes
    assert found.figure("decode_memory_kv").winner is None
    with pytest.raises(KeyError, match="warmth"):
        found.figure("warmth")


def test_throughput_is_tokens_of_all_chips_over_all_time(pairs: tuple[Pair, Pair]):
    a, workload = pairs[0], pairs[0].decode.setting.workload
    seconds = a.prefill_seconds + a.decode.total_seconds
    expected = workload.batch * workload.output / seconds
    assert compared(a, a).figure("throughput").b == pytest.approx(expected)


def test_what_was_asked_differently_is_named():
    found = compared(pair_of(palm(batch=64), "ws2d/batch"), pair_of(palm(INT8, batch=32), "ws2d/batch"))
    assert found.setting["formats.weights"] == ("bf16", "int8")
    assert found.setting["workload.batch"] == (64, 32)
    assert not any(name.startswith(("model.", "cluster.")) for name in found.setting)


def test_money_is_compared_where_both_have_a_price(pairs: tuple[Pair, Pair]):
    def priced(pair: Pair, price: float) -> Pair:
        phases = {}
        for phase in ("prefill", "decode"):
            was = getattr(pair, phase)
            chip = was.setting.cluster.chip.model_copy(update={"price_per_hour": price})
            cluster = was.setting.cluster.model_copy(update={"chip": chip})
            phases[phase] = replace(was, setting=replace(was.setting, cluster=cluster))
        return Pair(**phases)

    a, b = priced(pairs[0], 3.6), priced(pairs[0], 7.2)
    money = compared(a, b).figure("price_per_million_output_tokens")
    assert money.a == pytest.approx(1000 * a.chip_seconds_per_output_token)
    assert (money.b, money.winner) == (pytest.approx(2 * money.a), "a")
    with pytest.raises(KeyError):
        compared(a, pairs[1]).figure("price_per_million_output_tokens")


def test_json_is_plain(pairs: tuple[Pair, Pair]):
    written = json.loads(json.dumps(compared(*pairs).as_json(), allow_nan=False))
    assert written["schema"] == "partita.comparison/1"
    assert written["layouts"]["decode"] == {"a": "ws2d/batch", "b": "ws2d/heads"}
    assert {"name", "unit", "a", "b", "change", "better"} == set(written["bound"][0])


@pytest.mark.parametrize(
    ("a", "b", "better", "winner"),
    [
        (1, 2, "lower", "a"),
        (1, 2, "higher", "b"),
        (2, 1, "lower", "b"),
        (1, 1, "lower", None),
        (1, 2, None, None),
    ],
)
def test_the_better_one_wins(a, b, better, winner):
    assert ComparedFigure("x", "seconds", a, b, better).winner == winner


def test_nothing_to_compare_with_is_no_change():
    assert ComparedFigure("switch", "seconds", 0.0, 1.0, "lower").change is None
