"""The choices of the paper (Pope et al. 2022, sections 3.2, 3.3 and 4.1) come out of a far larger space.

PaLM 540B on 64 TPU v4, prompts of 2048. Where its layouts switch by the closed forms of a feed-forward block
is in tests/cost/test_closed_forms.py.
"""

from dataclasses import replace

import pytest
from tests.planner.pairs import NAMED, pair_of, phase_of
from tests.planner.settings import palm, setting

from partita.cost.prediction import Prediction, Setting
from partita.planner import Objective, Plan, PlanRequest, best_plan, make_plan
from partita.specs import Formats

INT8 = Formats(weights="int8")
OBJECTIVES: list[Objective] = ["latency", "cost", "throughput"]


def any_mesh(given: Setting, objective: Objective) -> Plan:
    """The best plan over all meshes of the same chips."""
    request = PlanRequest(
        model=given.model,
        clusters=(given.cluster,),
        formats=(given.formats,),
        workload=given.workload,
        objective=objective,
        memory_utilization=1.0,
    )
    return best_plan(request)


def chips_of(prediction: Prediction, *weights: str) -> int:
    """Chips whose mesh axes play one of these roles."""
    found = 1
    for axis, role in prediction.layout.roles.weights:
        found *= prediction.setting.mesh.size[axis] if role in weights else 1
    return found


@pytest.mark.parametrize("batch", [64, 128, 256, 512])
@pytest.mark.parametrize("formats", [Formats(), INT8], ids=["bf16", "int8"])
def test_decode_is_weight_stationary_2d_with_attention_split_over_the_batch(formats: Formats, batch: int):
    """With the largest batches attention leaves one axis its heads, which the paper did not try: 0.03%."""
    given = palm(formats, batch=batch, prefill_batch=1)
    plan = make_plan(given)
    assert plan.decode.layout.roles.ffn == "ws2d"
    split = [attention for _, attention in plan.decode.layout.roles.attends]
    assert split.count("batch") >= 2
    assert set(split) <= {"batch", "heads"}
    papers = phase_of(given, "decode", "ws2d/batch")
    assert papers.fits
    assert 1 <= papers.step_seconds / plan.decode.step_seconds < 1.0005


@pytest.mark.parametrize("batch", [64, 512])
def test_of_the_papers_layouts_decode_is_fastest_in_the_papers(batch: int):
    given = palm(INT8, batch=batch, prefill_batch=1)
    steps = {name: phase_of(given, "decode", name) for name in NAMED}
    fitting = {name: each.step_seconds for name, each in steps.items() if each.fits}
    assert min(fitting, key=lambda name: fitting[name]) == "ws2d/batch"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_prompt_is_prefilled_weight_stationary_2d(objective: Objective):
    given = palm(INT8, batch=64, prefill_batch=1)
    plan = make_plan(given, objective)
    assert plan.prefill.layout.roles.ffn == "ws2d"
    assert plan.prefill.tokens_per_step == 2048
    free = any_mesh(given, objective)
    assert chips_of(free.prefill, "e-gathered", "f-gathered") == 1
    assert min(chips_of(free.prefill, "e"), chips_of(free.prefill, "f")) >= 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_million_tokens_are_prefilled_weight_gathered(objective: Objective):
    """Over X and Y: the switch to XYZ, which the paper ran, is at half as many tokens again with SwiGLU."""
    given = palm(batch=512)
    for plan in (make_plan(given, objective), any_mesh(given, objective)):
        assert plan.prefill.tokens_per_step == 2**20
        assert plan.prefill.layout.roles.ffn == "wg-xy"
        assert plan.decode.layout.roles.ffn == "ws2d"
        assert plan.decode.layout.roles.attention == "batch"
    papers = pair_of(given, "wg-xyz/batch", "ws2d/batch")
    assert 1 < papers.prefill.step_seconds / make_plan(given, objective).prefill.step_seconds < 1.02


def test_more_tokens_gather_over_more_chips():
    """Section 3.2.2: communication falls from 2D to X, XY and XYZ as tokens in prefill grow."""
    chosen = []
    for batch in (1, 4, 16, 64, 512, 4096):
        short = setting("palm-540b", "tpu-v4:4x4x4", INT8, batch=batch, prompt=512, output=1)
        chip = short.cluster.chip.model_copy(update={"hbm_bytes": 10**13})
        cluster = short.cluster.model_copy(update={"chip": chip})
        plan = make_plan(replace(short, cluster=cluster), "cost")
        chosen.append(chips_of(plan.prefill, "e-gathered", "f-gathered", "replica"))
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (1, 64)
    assert 4 in chosen or 16 in chosen


def test_a_free_mesh_is_never_worse_than_the_papers():
    given = palm(INT8, batch=64, prefill_batch=1)
    for objective in OBJECTIVES:
        fixed, free = make_plan(given, objective).chosen, any_mesh(given, objective).chosen
        assert free.score(objective) <= fixed.score(objective) * (1 + 1e-9)
