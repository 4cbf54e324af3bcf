"""The search on one cluster: order, limits, ties, models of every family and clusters that do not divide."""

from dataclasses import replace

import pytest
from tests.planner.drawn import a_case, changed, one_case
from tests.planner.pairs import NAMED, pair_of
from tests.sizes import some

from partita.errors import InputError
from partita.planner import Case, Objective, PlanRequest, best_of
from partita.planner.search import ALIKE, best_pairs, keeps_limits
from partita.planner.serving import server
from partita.planner.tables import by_storage, price
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def case(model: str, cluster: str, *, objective: Objective = "latency", formats=None, **more) -> Case:
    """A case of one batch, with prompts of 200 tokens and outputs of 16, by default."""
    sizes = {"prompt": 200, "output": 16, "batch": 8}
    sizes |= {name: more.pop(name) for name in list(more) if name in Workload.model_fields}
    workload = Workload(**sizes)
    batches = more.pop("batches", (workload.batch,))
    prefill_batches = more.pop("prefill_batches", (workload.prefill_batch,))
    request = PlanRequest(
        model=catalogue_model(model),
        clusters=(parse_cluster(cluster),),
        formats=(formats or Formats(),),
        workload=workload,
        objective=objective,
        stages=1,
        **more,
    )
    return one_case(request, batches, prefill_batches)


# -- what is found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", some(5, range(0, 40, 4)))
def test_pairs_come_in_order_fit_and_are_stored_once(seed: int):
    asked = a_case(seed)
    found = best_pairs(price(asked), 6)
    scores = [pair.score("cost") for pair in found]
    assert scores == sorted(scores, key=lambda score: float(f"{score:.9g}"))
    for pair in found:
        assert pair.fits
        setting, layouts = pair.decode.setting, (pair.decode.layout, pair.prefill.layout)
        assert setting == pair.prefill.setting
        assert setting.mesh.chips == asked.cluster.chips
        assert layouts[0].storage == layouts[1].storage
        roles = [layout.roles for layout in layouts]
        assert layouts[0].storage == plan_storage(asked.model, setting.mesh, *roles)
        assert pair.decode.batch in asked.batches
        assert pair.prefill.batch <= max(pair.decode.batch, asked.prefill_batches[0])
    chosen = {
        (str(p.decode.layout), str(p.prefill.layout), p.decode.setting.mesh, p.decode.batch, p.prefill.batch)
        for p in found
    }
    assert len(chosen) == len(found) > 0


@pytest.mark.parametrize("seed", some(4, range(1, 40, 5)))
def test_a_longer_list_starts_with_the_shorter(seed: int):
    tables = price(a_case(seed))
    ten = [pair.score("cost") for pair in best_pairs(tables, 10)]
    three = [pair.score("cost") for pair in best_pairs(tables, 3)]
    assert three == pytest.approx(ten[:3], rel=1e-9)
    assert best_pairs(tables, 3, beat=ten[0] * 0.5) == []


@pytest.mark.parametrize("seed", range(2, 40, 9))
def test_only_rows_of_one_storage_are_paired(seed: int):
    tables = price(a_case(seed))
    decode, prefill = set(), set()
    for mine, theirs in by_storage(tables):
        stored = {tuple(tables.decode.storage[row]) for row in mine}
        assert stored == {tuple(tables.prefill.storage[row]) for row in theirs}
        assert len(stored) == 1
        assert not decode & set(mine.tolist())
        decode |= set(mine.tolist())
        prefill |= set(theirs.tolist())
    assert len(decode) == len(tables.decode.space.counts)
    assert len(prefill) == len(tables.prefill.space.counts)


def test_of_equals_the_one_with_fewest_axes_is_taken():
    """On one chip nothing is split, whatever roles its axes are given."""
    plan = best_of([case("smollm2-135m", "h100:1x1")])
    assert plan.decode.setting.mesh == Mesh.of((1,))
    assert str(plan.decode.layout.roles) == "ws1d/heads"


MODELS = {
    "multi-query": "palm-8b",
    "grouped": "llama-3-8b",
    "multi-head": "gpt2-124m",
    "windows": "gemma-3-4b",
    "latent": "minicpm3-4b",
    "padded": "smollm2-135m",
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("cluster", ["h100:1x1", "h100:1x7", "h100:2x4", "tpu-v4:1x2x2"])
def test_no_named_layout_beats_the_plan(model: str, cluster: str):
    """One chip, a prime number, nodes, a torus; heads that divide and heads that do not."""
    asked = case(model, cluster)
    plan = best_of([asked])
    setting = replace(plan.decode.setting, mesh=Mesh.of(asked.cluster.shape))
    assert plan.chosen.fits
    for prefill in NAMED:
        for decode in (prefill, "ws1d/heads", "ws2d/batch"):
            pair = pair_of(setting, prefill, decode, plan.ranked_by)
            if pair.fits:
                assert plan.chosen.latency_seconds <= pair.latency_seconds * (1 + 1e-9)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_batch_smaller_than_the_chips_is_planned(batch: int):
    plan = best_of([case("llama-3-8b", "h100:1x8", batch=batch)])
    assert plan.decode.batch == batch
    assert (
        plan.chosen.latency_seconds
        <= best_of([case("llama-3-8b", "h100:1x4", batch=batch)]).chosen.latency_seconds
    )


def test_three_kv_heads_on_seven_chips_are_padded_or_split_otherwise():
    plan = best_of([case("smollm2-135m", "h100:1x7")])
    assert plan.decode.setting.mesh.chips == 7
    one = best_of([case("smollm2-135m", "h100:1x1")])
    assert plan.decode.memory_bytes["weights"] <= one.decode.memory_bytes["weights"]
    for phase in plan.predictions():
        assert all(sizes["to"] >= sizes["from"] for sizes in phase.padding.values())


# -- limits ------------------------------------------------------------------------------------------------


def test_a_limit_is_kept_by_the_best_that_keeps_it():
    batches = (1, 4, 16, 64)
    sizes = {"batches": batches, "prefill_batches": batches, "prompt": 8000}
    asked = case("llama-3-8b", "h100:1x4", objective="cost", **sizes)
    free = best_of([asked], top=1).chosen
    for part in (0.8, 0.5):
        limit = free.tpot_seconds * part
        limited = changed(asked, max_tpot=limit)
        kept = best_of([limited], top=1).chosen
        assert kept.tpot_seconds <= limit
        assert keeps_limits(kept, limited)
        assert not keeps_limits(free, limited)
        assert kept.score("cost") >= free.score("cost")
        alone = [best_pairs(price(replace(limited, batches=(b,))), 1) for b in asked.batches]
        assert kept.score("cost") == pytest.approx(min(p[0].score("cost") for p in alone if p), rel=1e-9)
    quick = changed(asked, max_ttft=free.ttft_seconds * 0.5)
    assert best_of([quick]).chosen.ttft_seconds <= free.ttft_seconds * 0.5


def test_a_chunk_between_two_steps_counts_against_the_limit():
    asked = case("llama-3-8b", "h100:1x4", objective="cost", chunk=50, prefill_batches=(1, 2, 4, 8))
    plan = best_of([asked]).chosen
    both = plan.tpot_seconds + plan.chunk_seconds
    limit = both * 0.999
    tight = changed(asked, max_tpot=limit)
    found = best_of([tight]).chosen
    assert found.tpot_seconds + found.chunk_seconds <= limit
    assert found.score("cost") > plan.score("cost")
    loose = best_of([changed(asked, max_tpot=both * 1.001)]).chosen
    assert loose.score("cost") == pytest.approx(plan.score("cost"), rel=1e-9)


def test_a_rate_is_sustained_by_a_larger_batch():
    asked = case("llama-3-8b", "h100:1x2", batches=(1, 8, 64), prefill_batches=(1, 8, 64))
    free = best_of([asked]).chosen
    assert free.decode.batch == 1
    taken = float(server(free, None).requests_per_second)
    busy = best_of([changed(asked, rate=taken * 2)]).chosen
    assert busy.decode.batch > 1
    assert float(server(busy, None).requests_per_second) >= taken * 2
    with pytest.raises(InputError, match=r"rate: 1e\+09/s: no layout sustains it") as caught:
        best_of([changed(asked, rate=1e9)])
    assert caught.value.field == "rate"


# -- more to choose from is never worse ----------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["latency", "cost", "throughput"])
@pytest.mark.parametrize("seed", range(3, 30, 9))
def test_more_to_choose_from_is_never_worse(seed: int, objective):
    """Batches, formats and pipeline stages, each a larger space with the smaller one in it."""
    wide = a_case(seed, objective=objective)
    narrow = replace(wide, batches=wide.batches[:1], prefill_batches=wide.prefill_batches[:1])
    score = best_of([narrow], top=1).chosen.score(objective)
    assert best_of([wide], top=1).chosen.score(objective) <= score * (1 + 1e-9)
    other = replace(narrow, formats=Formats(weights="f32"))
    staged = replace(narrow, stages=a_case(seed, staged=True).stages)
    assert best_of([narrow, other, staged], top=1).chosen.score(objective) <= score * (1 + 1e-9)


def test_one_of_many_questions_is_as_good_as_asked_alone():
    """More than a few are looked at coarsely first, and those that did best closely."""
    clusters = ["h100:1x1", "h100:1x2", "h100:1x4", "h100:1x8", "h100:2x8", "h100:4x8"]
    many = [case("llama-3-8b", cluster, objective="cost") for cluster in clusters]
    seen = []
    plan = best_of(many, progress=lambda asked: seen.append(asked.cluster.name))
    assert seen == clusters
    alone = {q.cluster.name: best_of([q], top=1).chosen.score("cost") for q in many}
    assert plan.chosen.score("cost") == pytest.approx(min(alone.values()), rel=1e-9)
    assert plan.decode.setting.cluster.name == min(alone, key=lambda name: alone[name])
    assert plan.configurations > sum(price(q, 1000).configurations for q in many)


def test_stages_are_priced_and_chosen_where_the_network_is_slow():
    """A model that one node does not hold: a pipeline moves activations once, one mesh in every layer."""
    asked = case("llama-3-405b", "h100:2x8", objective="cost", batch=128, prefill_batch=8, prompt=2000)
    network, switch = asked.cluster.fabric
    slow = network.model_copy(update={"link_bandwidth": network.link_bandwidth / 100})
    cluster = asked.cluster.model_copy(update={"fabric": (slow, switch), "name": "slow"})
    apart = [replace(changed(asked, clusters=(cluster,)), stages=stages) for stages in (1, 2)]
    plan = best_of(apart)
    setting = plan.decode.setting
    assert (setting.stages, setting.mesh.chips) == (2, 8)
    assert plan.chosen.score("cost") < best_of(apart[:1]).chosen.score("cost")


def test_context_is_the_longest_that_any_batch_of_one_has():
    asked = case("llama-3-8b", "h100:1x2", objective="context", batch=1)
    plan = best_of([asked])
    longest = plan.chosen.max_context
    assert -plan.chosen.score("context") == longest > 10**5
    setting = plan.decode.setting
    here = replace(setting, mesh=Mesh.of((1, 2)))
    for name in NAMED:
        assert pair_of(here, name).max_context <= longest
    for context in (longest, int(longest * (1 + 2 * ALIKE))):  # a simpler layout may have a little less
        sized = changed(asked, workload=asked.workload.resized(context=context))
        assert bool(best_pairs(price(sized), 1)) == (context == longest)


def test_at_a_rate_the_first_prompt_of_a_batch_waits_for_the_last():
    """64 prompts at 5 a second come within 63 / 5 seconds."""
    asked = case(
        "llama-3-8b", "h100:1x2", batches=(64,), prefill_batches=(1, 8, 64), objective="cost", rate=5.0
    )
    free = best_of([asked]).chosen
    assert free.prefill.batch == 64
    assert free.fill_seconds(5.0) == pytest.approx(12.6)
    kept = best_of([changed(asked, max_ttft=2.0)]).chosen
    assert kept.prefill.batch == 8  # 7 / 5 seconds
    assert kept.ttft_seconds + 7 / 5 <= 2.0
    assert free.ttft_seconds < 2.0
    with pytest.raises(InputError, match="no layout meets this limit: the fastest prefill") as caught:
        best_of([replace(changed(asked, max_ttft=2.0), prefill_batches=(64,))])
    assert caught.value.field == "max_ttft"
