"""Sensitivities: elasticities add up, and each change touches only what it should."""

from dataclasses import replace

import pytest
from tests.planner.pairs import pair_of
from tests.planner.settings import palm, setting

from partita.advice.sensitivity import WHAT, changed_cluster, sensitivities
from partita.errors import InputError
from partita.specs import Formats, parse_cluster

INT8 = Formats(weights="int8")


@pytest.mark.parametrize("objective", ["latency", "cost"])
def test_elasticities_of_time_add_up_to_minus_one(objective):
    """Twice as fast in links, memory and compute at once is half the time."""
    pair = pair_of(palm(INT8, batch=64, prefill_batch=1), "ws2d/heads", "ws2d/batch")
    found = {each.what: each for each in sensitivities(pair, objective, more=1e-4)}
    assert list(found) == list(WHAT)
    assert sum(found[what].elasticity for what in ("links", "memory", "compute")) == pytest.approx(
        -1, abs=1e-3
    )
    assert found["capacity"].elasticity == 0
    assert all(each.elasticity <= 0 for each in found.values())
    assert found["links"].before == pair.score(objective)


def test_one_chip_has_no_links_to_be_faster():
    pair = pair_of(setting("palm-8b", "tpu-v4:1x1x1", batch=1, prompt=64, output=4), "ws1d/heads")
    found = {each.what: each for each in sensitivities(pair, "latency")}
    assert found["links"].change == 0
    assert "unchanged" in str(found["links"])
    assert found["memory"].change < -0.05


def test_more_memory_is_more_context_and_no_less_time():
    pair = pair_of(palm(INT8, batch=64), "ws2d/batch")
    (more,) = sensitivities(pair, "context", what=["capacity"])
    assert (more.before, more.after > more.before) == (pair.max_context, True)
    assert "10% more memory: context" in str(more)


def test_the_choice_that_would_change_is_named():
    given = palm(INT8, batch=64)
    mine, other = pair_of(given, "ws2d/batch"), pair_of(given, "ws2d/heads", "ws2d/batch")

    def choose(changed):
        assert changed.cluster != given.cluster
        return pair_of(changed, "ws2d/heads", "ws2d/batch")

    (same,) = sensitivities(mine, "latency", what=["links"], choose=lambda s: pair_of(s, "ws2d/batch"))
    assert (same.changes_choice, same.after_choosing) == (False, same.after)
    (changed,) = sensitivities(mine, "latency", what=["links"], choose=choose)
    assert changed.changes_choice
    assert "ws2d/heads and ws2d/batch" in str(changed)
    assert changed.after_choosing is not None
    assert changed.after_choosing < other.latency_seconds
    (unasked,) = sensitivities(mine, "latency", what=["links"])
    assert unasked.changes_choice is None


@pytest.mark.parametrize("what", list(WHAT))
def test_a_change_touches_one_figure(what: str):
    cluster = parse_cluster("h100:2x8")
    changed = changed_cluster(cluster, what, 0.1)
    assert changed != cluster
    figures = [
        (c.chip.hbm_bytes, c.chip.hbm_bandwidth, c.chip.peak_flops, [a.link_bandwidth for a in c.fabric])
        for c in (cluster, changed)
    ]
    assert sum(one != other for one, other in zip(*figures, strict=True)) == 1
    assert changed.fabric[0].size == cluster.fabric[0].size


def test_wrong_questions_are_refused():
    pair = pair_of(setting("palm-8b", "tpu-v4:1x1x1", batch=1, prompt=4, output=1), "ws1d/heads")
    with pytest.raises(InputError, match="what: clocks: accepted are links, memory, compute, capacity"):
        sensitivities(pair, "latency", what=["clocks"])
    with pytest.raises(InputError, match=r"more: 0: a part above zero is accepted"):
        sensitivities(pair, "latency", more=0)


def test_the_prices_are_those_of_the_changed_chips():
    given = palm(INT8, batch=64)
    pair = pair_of(given, "ws2d/batch")
    (links,) = sensitivities(pair, "latency", what=["links"], more=0.5)
    faster = replace(given, cluster=changed_cluster(given.cluster, "links", 0.5))
    assert links.after == pair_of(faster, "ws2d/batch").latency_seconds


def test_throughput_is_told_in_the_chip_seconds_of_a_token():
    """Of all chips: a cost of 8 chips is not that of one."""
    pair = pair_of(palm(INT8, batch=64), "ws2d/batch")
    (cost,) = sensitivities(pair, "cost", what=["links"])
    (throughput,) = sensitivities(pair, "throughput", what=["links"])
    assert throughput.before == cost.before == pair.chip_seconds_per_output_token
    assert (throughput.after, throughput.change) == (cost.after, cost.change)
    rate = pair.output_tokens_per_second
    assert throughput.before == pytest.approx(64 / rate)
