"""Decode with drafts, priced: closed forms where memory or compute alone counts."""

from dataclasses import replace

import pytest

import partita
from partita.planner.drafting import drafted_steps
from partita.planner.pair import Pair
from partita.specs.drafts import DraftRequest, published_drafts, tokens_per_step


@pytest.fixture(scope="module")
def pair() -> Pair:
    plan = partita.plan("llama3-8b", on="h100:1x1", prompt=1024, output=64, batch=1, by="bound")
    return plan.chosen


def test_a_step_that_memory_binds_takes_no_longer_for_drafts(pair: Pair):
    [step] = drafted_steps(pair, DraftRequest("ngram", 0.6, 3))
    assert step.draft_seconds == 0
    assert step.step_seconds == pytest.approx(step.plain_seconds, rel=1e-3)
    assert step.speedup == pytest.approx(tokens_per_step(0.6, 3), rel=1e-3)
    assert step.tokens_per_second == pytest.approx(tokens_per_step(0.6, 3) / step.step_seconds)


def test_a_step_that_compute_binds_takes_as_many_times_longer(pair: Pair):
    setting = pair.decode.setting
    many = setting.workload.model_copy(update={"batch": 4096, "prefill_batch": 1})
    slow = setting.cluster.chip.model_copy(update={"hbm_bandwidth": 1e18})
    cluster = setting.cluster.model_copy(update={"chip": slow})
    found = pair.priced_in(replace(setting, workload=many, cluster=cluster))
    for step in drafted_steps(found, DraftRequest("ngram", 1.0)):
        assert step.step_seconds == pytest.approx((1 + step.drafted) * step.plain_seconds, rel=1e-3)
        assert step.speedup == pytest.approx(1, rel=1e-3)


def test_a_head_reads_its_parameters_and_the_unembedding_for_every_token(pair: Pair):
    model, chip = pair.decode.setting.model, pair.decode.setting.cluster.chip
    parameters = 500_000_000
    for drafted in (1, 5):
        [step] = drafted_steps(pair, DraftRequest("eagle3", 0.7, drafted, parameters))
        read = 2 * (parameters + model.vocabulary * model.d_model)
        assert step.draft_seconds == pytest.approx(drafted * read / chip.hbm_bandwidth, rel=0.03)
    [own] = drafted_steps(pair, DraftRequest("mtp", 0.7, 1))
    [more] = drafted_steps(pair, DraftRequest("eagle3", 0.7, 1))
    matrix = 2 * model.d_model**2 / chip.hbm_bandwidth  # EAGLE-3 joins one vector more
    assert more.draft_seconds - own.draft_seconds == pytest.approx(matrix, rel=0.03)


def test_without_an_acceptance_those_published_for_the_method(pair: Pair):
    found = drafted_steps(pair, DraftRequest("eagle3"))
    wanted = [one for one in published_drafts() if one.method == "eagle3"]
    assert [(step.drafted, step.source) for step in found] == [(one.drafted, one.source) for one in wanted]
    assert [step.tokens for step in found] == pytest.approx([one.tokens for one in wanted])
    [step] = drafted_steps(pair, DraftRequest("mtp", drafted=3))
    assert (step.drafted, step.tokens) == (3, pytest.approx(tokens_per_step(0.875, 3)))
    assert [step.drafted for step in drafted_steps(pair, DraftRequest("mtp", 0.5))] == list(range(1, 8))
