"""The planner against brute force written here, against limits, and against the choices of the paper."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.planner.settings import palm, setting
from tests.sizes import full

from partita.cost.prediction import Prediction, Setting, predict, reshard_seconds
from partita.errors import InputError
from partita.planner import BATCHES, Objective, Plan, PlanRequest, best_plan, make_plan
from partita.planner.pair import BASES, Basis, Pair
from partita.planner.search import ALIKE
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_roles
from partita.specs import Formats, Workload

FFN = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
ATTENTION = ("heads", "batch")
INT8 = Formats(weights="int8")


def every_pair(given: Setting) -> Iterator[tuple[Prediction, Prediction]]:
    """Prefill and decode in every pair of named layouts that fits, on the storage that the pair shares."""
    roles = [parse_roles(ffn, attention, given.mesh.axes) for ffn, attention in product(FFN, ATTENTION)]
    for prefill, decode in product(roles, roles):
        storage = plan_storage(given.model, given.mesh, decode, prefill)
        phases = predict(given, "prefill", prefill, storage), predict(given, "decode", decode, storage)
        if Pair(*phases).fits:
            yield phases


def any_batch(given: Setting, objective: Objective, **limits: float) -> Plan:
    """The plan where batches are left to the planner, on the setting's mesh."""
    request = PlanRequest(
        model=given.model,
        clusters=(given.cluster,),
        formats=(given.formats,),
        workload=given.workload,
        objective=objective,
        auto_batch=True,
        mesh=given.mesh,
        memory_utilization=given.memory_utilization,
        **limits,  # type: ignore[arg-type]
    )
    return best_plan(request)


def times(prefill: Prediction, decode: Prediction, basis: Basis) -> tuple[float, float, float]:
    """Seconds of a prefill, of moving the cache, and of all decode steps."""
    profile = decode.setting.cluster.profile
    if basis == "bound":
        return prefill.step_seconds, reshard_seconds(prefill, decode), decode.total_seconds
    assert prefill.estimate is not None
    assert decode.estimate is not None
    moved = reshard_seconds(prefill, decode, profile)
    return prefill.estimate.step_seconds, moved, decode.estimate.total_seconds


def latency(prefill: Prediction, decode: Prediction, basis: Basis) -> float:
    return sum(times(prefill, decode, basis))


def chip_seconds(prefill: Prediction, decode: Prediction, basis: Basis) -> float:
    """Chip-seconds of one output token; prompts are read in as many prefills as the decode batch takes."""
    read, moved, written = times(prefill, decode, basis)
    workload, chips = decode.setting.workload, decode.setting.cluster.chips
    prefills = -(-workload.batch // workload.prefill_batch)
    seconds = prefills * (read + moved) + written
    return chips * seconds / (workload.batch * workload.output)


SCORES = {
    "latency": latency,
    "cost": chip_seconds,
    "throughput": chip_seconds,
    "context": lambda prefill, decode, _by: -Pair(prefill, decode).max_context,
}


def layouts(plan: Plan) -> tuple[str, str]:
    return str(plan.prefill.layout.roles), str(plan.decode.layout.roles)


SETTINGS = {
    "palm-540b, 64 chips, chat": palm(INT8, batch=64, prefill_batch=1),
    "palm-540b, 64 chips, almost full": palm(batch=576),
    "palm-8b, 8 chips": setting("palm-8b", "tpu-v4:2x2x2", batch=32, prompt=512, output=16),
    "smollm2, padded, 1 x 2 x 4": setting("smollm2-135m", "tpu-v4:1x2x4", batch=3, prompt=96, output=5),
    "mt-nlg, uneven prefills": setting("mt-nlg-530b", "tpu-v4:4x4x8", batch=20, prefill_batch=8, output=9),
}


# -- against brute force --------------------------------------------------------------------------------


QUESTIONS = [
    *product(SETTINGS, ["latency", "cost"]),
    ("palm-8b, 8 chips", "throughput"),
    ("palm-540b, 64 chips, chat", "context"),
]
ASKED = [
    (*asked, basis) if (number + turn) % 2 == 0 else full((*asked, basis))
    for number, asked in enumerate(QUESTIONS)
    for turn, basis in enumerate(BASES)
]
"""Every question by one of the times a plan goes by, in the full run by both."""


@pytest.mark.parametrize(("name", "objective", "basis"), ASKED)
def test_no_pair_that_fits_is_better_than_the_chosen(name: str, objective: Objective, basis: Basis):
    """The best of the named layouts; the search has many more (tests/planner/test_brute_force.py)."""
    given, score = SETTINGS[name], SCORES[objective]
    best = min(score(*pair, basis) for pair in every_pair(given))
    plan = make_plan(given, objective, top=7, basis=basis)
    ranked = [plan.chosen, *plan.runners_up]
    scores = [score(p.prefill, p.decode, basis) for p in ranked]
    assert scores[0] <= best + abs(best) * ALIKE
    assert scores[1:] == sorted(scores[1:])
    assert all(p.fits for p in ranked)
    assert len({(p.prefill.layout.roles, p.decode.layout.roles) for p in ranked}) == len(ranked)


def test_a_faster_pair_that_does_not_fit_is_passed_over():
    given = palm(batch=576)
    plan = make_plan(given)
    best = make_plan(with_memory(given, 10**15))
    assert layouts(best) != layouts(plan)
    assert best.chosen.latency_seconds < plan.chosen.latency_seconds
    held = (p.memory_bytes["total"] for p in (best.prefill, best.decode))
    assert max(held) > given.cluster.chip.hbm_bytes
    assert plan.chosen.fits


def with_memory(given: Setting, hbm_bytes: int) -> Setting:
    """The same setting on chips that hold so much."""
    chip = given.cluster.chip.model_copy(update={"hbm_bytes": hbm_bytes})
    return replace(given, cluster=given.cluster.model_copy(update={"chip": chip}))


@pytest.mark.parametrize(
    ("given", "objective"),
    [
        (palm(batch=1), "latency"),
        full((palm(batch=1), "cost")),
        (setting("smollm2-135m", "tpu-v4:1x2x2", batch=1, prompt=256), "throughput"),
        (setting("palm-8b", "tpu-v4:1x2x2", batch=1), "context"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model.name,
)
def test_the_automatic_batch_is_the_best_of_all_tried(given: Setting, objective: Objective):
    scores = {}
    for batch in BATCHES if objective != "context" else BATCHES[:3]:  # context is slow to price
        workload = Workload(prompt=given.workload.prompt, output=given.workload.output, batch=batch)
        plan = make_plan_or_none(replace(given, workload=workload), objective)
        if plan is not None:
            scores[batch] = plan.chosen.score(objective)
    found = any_batch(given, objective)
    # its prefill batch is chosen too, so it may be better still
    least = min(scores.values())
    assert found.chosen.score(objective) <= least + abs(least) * ALIKE
    assert found.prefill.batch <= found.decode.batch


def make_plan_or_none(given: Setting, objective: Objective, **limits: Any) -> Plan | None:
    try:
        return make_plan(given, objective, **limits)
    except InputError:
        return None


# -- the choices of the paper (Pope et al. 2022, sections 3.2, 3.3 and 4.1), by its own formula, the bound ---


@pytest.mark.parametrize("batch", [64, 128, 256, 512])
@pytest.mark.parametrize("formats", [Formats(), INT8], ids=["bf16", "int8"])
def test_decode_is_weight_stationary_2d_with_attention_split_over_the_batch(formats: Formats, batch: int):
    plan = make_plan_or_none(palm(formats, batch=batch, prefill_batch=1), "latency")
    assert plan is not None
    assert layouts(plan)[1] == "ws2d/batch"


@pytest.mark.parametrize("objective", ["latency", "cost"])
def test_one_prompt_is_prefilled_weight_stationary_2d(objective: Objective):
    plan = make_plan(palm(INT8, batch=64, prefill_batch=1), objective)
    assert plan.prefill.layout.roles.ffn == "ws2d"
    assert plan.prefill.tokens_per_step == 2048


@pytest.mark.parametrize("objective", ["latency", "cost", "throughput"])
def test_a_million_tokens_are_prefilled_weight_gathered(objective: Objective):
    plan = make_plan(palm(batch=512), objective)
    assert plan.prefill.tokens_per_step == 2**20
    assert plan.prefill.layout.roles.ffn.startswith("wg-")
    assert layouts(plan)[1] == "ws2d/batch"


def test_more_tokens_split_tokens_over_more_chips():
    """Section 3.2.2: as tokens in prefill grow, weights stay on fewer chips, tokens are split over more."""
    split = []
    for batch in (1, 4, 16, 64, 512, 4096):
        short = setting("palm-540b", "tpu-v4:4x4x4", INT8, batch=batch, prompt=512, output=1)
        plan = make_plan(with_memory(short, 10**13), "cost")
        size = plan.prefill.setting.mesh.size
        roles = dict(plan.prefill.layout.roles.weights)
        split.append(math.prod(size[axis] for axis, role in roles.items() if role not in ("e", "f")))
    assert split == sorted(split)
    assert split[0] < 64
    assert split[-1] == 64


def test_a_throughput_plan_takes_a_large_batch_and_a_latency_plan_one_sequence():
    assert any_batch(palm(batch=1), "throughput").decode.batch >= 256
    assert any_batch(palm(batch=1), "latency").decode.batch == 1


# -- limits ---------------------------------------------------------------------------------------------


def test_limits_are_kept_and_cost_something():
    free = any_batch(palm(batch=1), "throughput")
    limit = 0.5 * free.chosen.tpot_seconds
    kept = any_batch(palm(batch=1), "throughput", max_tpot=limit)
    assert kept.chosen.tpot_seconds <= limit
    assert 1 < kept.decode.batch <= free.decode.batch
    assert kept.chosen.score("throughput") > free.chosen.score("throughput")
    both = any_batch(palm(batch=1), "throughput", max_tpot=limit, max_ttft=0.5)
    assert both.chosen.ttft_seconds <= 0.5
    assert both.chosen.tpot_seconds <= limit
    assert both.chosen.score("throughput") >= kept.chosen.score("throughput")


def test_a_limit_changes_the_layout_where_only_another_keeps_it():
    given = SETTINGS["palm-540b, 64 chips, chat"]
    plan = make_plan(given)
    limit = 0.998 * plan.chosen.ttft_seconds
    limited = make_plan(given, max_ttft=limit)
    assert limited.chosen.ttft_seconds <= limit
    assert layouts(limited) != layouts(plan)
    assert limited.chosen.latency_seconds >= plan.chosen.latency_seconds * (1 - ALIKE)


def test_a_limit_that_is_just_met_is_met():
    given = SETTINGS["palm-8b, 8 chips"]
    plan = make_plan(given)
    limits: dict[str, Any] = {"max_ttft": plan.chosen.ttft_seconds, "max_tpot": plan.chosen.tpot_seconds}
    assert layouts(make_plan(given, **limits)) == layouts(plan)


@pytest.mark.parametrize("field", ["max_ttft", "max_tpot"])
def test_an_unreachable_limit_is_refused_with_the_best_there_is(field: str):
    given = SETTINGS["palm-8b, 8 chips"]
    plan = make_plan(given)
    reached = plan.chosen.ttft_seconds if field == "max_ttft" else plan.chosen.tpot_seconds
    unreachable: dict[str, Any] = {field: reached / 10}
    with pytest.raises(InputError, match="no layout meets this limit: the fastest") as caught:
        make_plan(given, **unreachable)
    assert caught.value.field == field


# -- what does not fit ----------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_refused_with_bytes_by_part_and_the_smallest_change():
    with pytest.raises(InputError) as caught:
        make_plan(setting("palm-540b", "tpu-v4:2x2x2", batch=64))
    assert (caught.value.field, caught.value.value) == ("cluster", "tpu-v4:2x2x2")
    message = caught.value.message
    for part in ("weights 135 GB", "kv 2.04 GB", "activations", "of 34.4 GB per chip"):
        assert part in message
    assert message.endswith("smallest change that fits: --on tpu-v4:4x4x4 --mesh x=4,y=4,z=4")
    make_plan(setting("palm-540b", "tpu-v4:4x4x4", batch=64))


def offered(message: str) -> list[str]:
    """The changes that a refusal offers."""
    return message.partition("smallest change that fits: ")[2].split("; or ")


def test_less_of_the_prompts_at_a_time_comes_before_what_loses_something():
    given = palm(batch=3000)  # prefilled together, 12 GB of caches
    with pytest.raises(InputError) as caught:
        make_plan(given)
    (change,) = offered(caught.value.message)
    option, size = change.split()
    assert option == "--chunk"
    assert make_plan(palm(batch=3000, chunk=int(size))).chosen.fits
    assert make_plan_or_none(palm(batch=3000, chunk=int(size) + 64), "latency") is None


def test_what_loses_something_is_as_little_as_it_takes():
    """Weights and cache are more than there is: neither a chunk nor fewer prompts at a time would help."""
    given = palm(batch=4000, prefill_batch=1)
    with pytest.raises(InputError) as caught:
        make_plan(given)
    changes = dict(change.rsplit(" ", 1) for change in offered(caught.value.message))
    assert list(changes) == ["--batch", "--kv", "--prompt", "--on tpu-v4:8x4x4 --mesh"]
    batch = int(changes["--batch"])
    assert make_plan(palm(batch=batch, prefill_batch=1)).chosen.fits
    # 64 chips have a sequence more each
    assert make_plan_or_none(palm(batch=batch + 64, prefill_batch=1), "latency") is None
    assert make_plan(palm(Formats(kv="int8"), batch=4000, prefill_batch=1)).chosen.fits
    prompt = int(changes["--prompt"])
    assert make_plan(palm(batch=4000, prefill_batch=1, prompt=prompt)).chosen.fits
    longer = palm(batch=4000, prefill_batch=1, prompt=prompt + prompt // 50)
    assert make_plan_or_none(longer, "latency") is None
    assert changes["--on tpu-v4:8x4x4 --mesh"] == "x=8,y=4,z=4"


def test_nothing_is_promised_where_no_change_would_fit():
    given = setting("smollm2-135m", "tpu-v4:1x1x1", batch=1, prompt=16)
    mine = given.cluster.model_copy(update={"name": "mine"})  # a cluster of one's own has no larger sisters
    with pytest.raises(InputError, match="no smaller batch, shorter context or int8 format would fit"):
        make_plan(with_memory(replace(given, cluster=mine), 1000))


# -- what is said ---------------------------------------------------------------------------------------


def test_the_reasons_name_both_phases_what_limits_them_and_every_other_layout():
    plan = make_plan(SETTINGS["palm-540b, 64 chips, chat"])
    assert plan.explain() == "\n".join(plan.reasons)
    for phase, chosen in (("prefill", plan.prefill), ("decode", plan.decode)):
        said = [reason for reason in plan.reasons if reason.startswith(f"{phase}: ")]
        assert said[0].startswith(f"{phase}: {chosen.layout.roles}; ")
        assert "limited by" in said[0]
        others = {reason.removeprefix(f"{phase}: ").split("/")[0].split(" ")[0] for reason in said[1:]}
        assert others == set(FFN) - {chosen.layout.roles.ffn}


def test_a_layout_that_does_not_fit_says_so_among_the_reasons():
    reasons = make_plan(palm(batch=576)).reasons
    assert any("does not fit" in reason and "GB per chip" in reason for reason in reasons)


def test_padding_is_a_reason():
    plan = make_plan(SETTINGS["smollm2, padded, 1 x 2 x 4"])
    assert any(reason.startswith("padding: heads 9 -> ") for reason in plan.reasons)


def test_runners_up_lose_by_their_score():
    plan = make_plan(SETTINGS["palm-8b, 8 chips"], top=4)
    written = plan.as_json()["runners_up"]
    best = plan.chosen.latency_seconds
    assert [row["loses_by"] for row in written] == pytest.approx(
        [pair.latency_seconds / best - 1 for pair in plan.runners_up]
    )
    assert [row["loses_by"] for row in written] == sorted(row["loses_by"] for row in written)
    assert len(written) == 3


def test_a_mesh_of_another_shape_is_planned_on_its_own_axes():
    given = replace(SETTINGS["palm-8b, 8 chips"], mesh=parse_mesh("x=2,y=4"))
    plan = make_plan(given)
    assert plan.decode.setting.mesh.size == {"x": 2, "y": 4}
    assert plan.chosen.latency_seconds <= min(
        latency(*pair, plan.ranked_by) for pair in every_pair(given)
    ) * (1 + ALIKE)
