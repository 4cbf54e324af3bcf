"""The account of a server's memory: by hand, against a simulation, and against every size that there is."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.drawn import a_cluster, a_model, one_case
from tests.planner.pairs import pair_of
from tests.planner.settings import setting
from tests.planner.simulated_server import Server
from tests.planner.test_properties import FEW, SEEDS
from tests.sizes import many

from partita.cost.prediction import Setting
from partita.errors import InputError
from partita.planner import Case, Pair, Plan, PlanRequest, best_of, best_plan
from partita.planner.exact import Exact
from partita.planner.tables import price
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload, catalogue_model, parse_cluster

GIB = 2**30
KV_8B = 2 * 32 * 8 * 128 * 2  # bytes of a token of Llama 3 8B: 32 layers, 8 KV heads of 128, bf16
KV_70B = 2 * 80 * 8 * 128 * 2
H100_RUNTIME = parse_cluster("h100:1x1").chip.runtime_bytes


def one_chip(model: str = "llama-3-8b", share: float = 0.9, **workload: Any) -> Pair:
    """On one H100, where there is one layout."""
    here = setting(model, "h100:1x1", **workload)
    return pair_of(replace(here, mesh=Mesh.of((1,)), memory_utilization=share), "ws1d/heads")


# -- by hand ------------------------------------------------------------------------------------------------


def test_every_moment_of_one_chip_by_hand():
    """64 sequences of 2,112 places each, 4 prompts of 2,048 tokens in chunks of 512."""
    pair = one_chip(batch=64, prefill_batch=4, chunk=512)
    gains = (2 * 32 + 1) * 4096
    weights = 2 * catalogue_model("llama-3-8b").parameters + 2 * gains  # which are float32
    slots = 64 * 2112 * KV_8B
    assert slots == 17_716_740_096
    for moment, live in pair.memory.items():
        assert live.weights == weights, moment
        assert live.kv == slots, moment  # 60 x 2,112 + 4 x 2,048 are fewer
        assert live.runtime == H100_RUNTIME, moment
    # float32 scores and bf16 shares of 32 heads, 4 prompts of 512 tokens on 2,048 places, are most of it
    scores = 4 * 32 * 512 * 2048 * (4 + 2)
    assert scores < pair.memory["reading"].activations < 1.4 * scores
    assert pair.memory["moving"].activations == 0
    assert pair.fullest[0] == "reading"
    total = weights + slots + H100_RUNTIME + pair.memory["reading"].activations
    assert pair.fullest[1].total == total
    assert pair.fits is (total <= int(0.9 * 80 * GIB)) is True


def test_prompts_in_a_layout_that_copies_them_count_as_copies():
    """Decode splits sequences over 8 chips; a prefill in heads keeps each of 4 KV heads on two chips."""
    here = setting("qwen2.5-7b", "h100:1x8", batch=32, prefill_batch=16, prompt=1000, output=24)
    pair = pair_of(replace(here, mesh=Mesh.of((8,))), "ws1d/heads", "ws1d/batch")
    token = 2 * 28 * 4 * 128 * 2
    copied = pair.prefill.memory_bytes["kv"]
    assert pair.prefill.layout.attn_b == ""
    assert copied >= 16 * 1000 * token // 4
    slots = 4 * 1024 * token
    # 16 sequences go on, and a chip may have any 4 of them
    assert pair.memory["reading"].kv == slots + copied
    assert pair.memory["decoding"].kv == slots
    in_chunks = pair.priced_in(replace(pair.decode.setting, workload=here.workload.resized(chunk=100)))
    assert in_chunks.memory["decoding"].kv == slots + copied


@pytest.mark.parametrize(("tokens", "published"), [(4096, 92), (1152, 327), (8704, 43)])
def test_users_of_qwen3_8b_on_one_h100_beside_published_ones(tokens: int, published: int):
    """Users that one H100 was published to hold at 0.9 of its memory, within 6%: what the server's own steps
    take is not published."""
    pair = one_chip("qwen3-8b", batch=1, prompt=tokens - 1, output=1, chunk=512)
    token = 2 * 36 * 8 * 128 * 2
    held = [int(live.activations) for live in pair.memory.values()]
    room = int(0.9 * 80 * GIB) - H100_RUNTIME - 2 * catalogue_model("qwen3-8b").parameters
    # a decode step of more users holds more: at most float32 logits of them, in a few copies
    most = (room - max(held)) // (tokens * token)
    assert most - 4 <= pair.max_batch <= most
    assert abs(pair.max_batch / published - 1) < 0.06


# -- the plans of the README and others that did not fit ----------------------------------------------------


@pytest.mark.parametrize(
    ("model", "cluster", "limit"),
    [
        ("llama-3-70b", "h100:2x8", 0.04),
        ("llama-3-70b", "h100:1x8", None),
        ("llama-3-8b", "h100:1x2", None),
    ],
)
def test_a_plan_for_cost_holds_both_phases_at_once(model: str, cluster: str, limit: float | None):
    request = PlanRequest(
        model=catalogue_model(model),
        clusters=(parse_cluster(cluster),),
        formats=(Formats(),),
        workload=Workload(prompt=2048, output=64, batch=1),
        objective="cost",
        auto_batch=True,
        auto_chunk=True,
        between=False,
        max_tpot=limit,
    )
    plan = best_plan(request)
    chips, capacity = request.clusters[0].chips, int(0.9 * 80 * GIB)
    token = KV_70B if model == "llama-3-70b" else KV_8B
    slots = plan.decode.batch * 2112 * token // chips  # at least, as nothing is kept twice
    read = plan.chosen.memory["reading"]
    assert read.kv >= slots
    parts = plan.prefill.memory_bytes
    assert parts["weights"] + slots + parts["activations"] + H100_RUNTIME <= capacity
    assert read.total <= capacity


# -- a simulation -------------------------------------------------------------------------------------------


def drawn_case(seed: int) -> Case:
    """A model without latent attention on a few chips that hold little more than its weights."""
    draw = random.Random(seed)
    model = a_model(draw)
    while model.latent is not None:
        model = a_model(draw)
    cluster = a_cluster(draw)
    batch = draw.choice([1, 2, 5, 8, 12])
    samples = draw.choice([1, 1, 1, min(2, batch)])
    workload = {"prompt": draw.choice([3, 17, 40]), "output": draw.choice([1, 4, 9]), "samples": samples}
    if draw.random() < 0.3:
        workload["prefix"] = 2
    if draw.random() < 0.4:
        workload["prefill_batch"] = draw.choice([1, 2, 3])
    if draw.random() < 0.4:
        workload["chunk"] = draw.choice([1, 4, 16])
    kv = draw.choice(["bf16", "int8"])
    request = PlanRequest(
        model=model,
        clusters=(cluster,),
        formats=(Formats.model_validate({"kv": kv}),),
        workload=Workload(batch=batch, **workload),
        objective=draw.choice(["latency", "cost"]),
        auto_prefill_batch="prefill_batch" not in workload,
        auto_chunk="chunk" not in workload,
        between=draw.random() < 0.5,
        stages=1,
    )
    (case,) = request.cases()
    return case


def tight(case: Case, plan: Plan, spare: float) -> Case:
    """The case on chips where so much of what the plan takes beside weights and runtime is there."""
    live = plan.chosen.fullest[1]
    need = live.weights + live.runtime + spare * (live.kv + live.activations)
    chip = case.cluster.chip.model_copy(update={"hbm_bytes": int(need / 0.9) + 2})
    cluster = case.cluster.model_copy(update={"chip": chip})
    request = replace(case.request, clusters=(cluster,))
    return replace(case, request=request, cluster=cluster)


def planned(case: Case) -> Plan | None:
    try:
        return best_of([case], top=1)
    except InputError:
        return None


def too_tight(seed: int, spare: float) -> Case | None:
    """A case that has a plan, with so little memory that it has none; None where it still has one."""
    case = drawn_case(seed)
    plan = planned(case)
    assert plan is not None
    case = tight(case, plan, spare)
    return case if planned(case) is None else None


@settings(FEW, max_examples=many(15))
@given(SEEDS, st.sampled_from([1.0, 0.9, 0.7, 0.5]))
def test_no_more_is_alive_in_a_simulation_than_the_plan_accounts_for(seed: int, spare: float):
    case = drawn_case(seed)
    plan = planned(case)
    assert plan is not None
    plan = planned(tight(case, plan, spare)) or plan
    pair, draw = plan.chosen, random.Random(seed)
    most = max(Server(pair, requests=4 * pair.prefill.batch, draw=draw).run())
    assert most <= pair.fullest[1].total <= pair.decode.setting.capacity_bytes


# -- nothing that fits is refused ---------------------------------------------------------------------------


@settings(FEW, max_examples=many(6))
@given(SEEDS, st.sampled_from([0.9, 0.6, 0.4, 0.2]))
def test_what_is_refused_fits_at_no_size_that_is_left_open(seed: int, spare: float):
    """Every prefill batch and chunk there is, in every pair of rows, priced as they would run."""
    case = too_tight(seed, spare)
    if case is None:
        return
    workload, new = case.workload, case.workload.new_tokens
    prompts = -(-workload.batch // workload.samples)
    batches = range(1, prompts + 1) if case.request.leaves_prefill_batch else [workload.prefill_batch]
    chunks = [None, *range(1, new)] if case.request.auto_chunk else [workload.chunk]
    draw = random.Random(seed)
    sizes = list(itertools.product(batches, chunks))
    for batch, chunk in [*draw.sample(sizes, min(len(sizes), 3)), (batches[0], chunks[1 % len(chunks)])]:
        one = replace(one_case(case.request, (workload.batch,), (batch,)), chunks=(chunk,))
        tables = price(one, 3000)
        exact = Exact(tables)
        fits = tables.decode_fits[:, 0].nonzero()[0][:30], tables.prefill_fits[:, 0].nonzero()[0][:30]
        for mine, theirs in itertools.product(*fits):
            if tables.decode.storage[mine].tolist() == tables.prefill.storage[theirs].tolist():
                assert not any(pair.fits for pair in exact.pairs(int(mine), 0, int(theirs), 0))


def refusal(case: Case) -> str:
    with pytest.raises(InputError) as caught:
        best_of([case], top=1)
    return caught.value.message


def applied(case: Case, flags: str) -> Case:
    """The case with flags of a remedy, as the command line would read them."""
    given = _options(flags)
    request, sizes, formats = case.request, {}, {}
    more: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("weights", "kv"):
            formats[name] = value
        elif value == "auto":
            more[f"auto_{name}"] = True
        elif name == "memory_utilization":
            more[name] = float(value)
        else:
            sizes[name] = int(value)
    if "prompt" in sizes and "context" not in sizes:
        sizes["context"] = None
    changed = replace(
        request,
        workload=request.workload.resized(**sizes),
        formats=(request.formats[0].model_copy(update=formats),),
        **more,
    )
    (found,) = changed.cases()
    return found


def _options(flags: str) -> dict[str, str]:
    words = flags.split()
    return {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }


@settings(FEW, max_examples=many(8))
@given(SEEDS, st.sampled_from([0.9, 0.6, 0.3]))
def test_every_change_that_a_refusal_offers_fits_when_it_is_made(seed: int, spare: float):
    case = too_tight(seed, spare)
    if case is None:
        return
    offered = refusal(case).partition("smallest change that fits: ")[2]
    for flags in offered.split("; or ") if offered else []:
        assert planned(applied(case, flags)) is not None, flags


# -- one chip, where the largest that fits can be told ------------------------------------------------------


def on_one_chip(model: str, weights: str = "bf16", share: float = 0.9, **sizes: Any) -> Case:
    """As the command line asks: what is not given is open."""
    given = {"prompt": 2048, "output": 64, "batch": 1} | sizes
    request = PlanRequest(
        model=catalogue_model(model),
        clusters=(parse_cluster("h100:1x1"),),
        formats=(Formats.model_validate({"weights": weights}),),
        workload=Workload(**given),
        auto_batch="batch" not in sizes,
        auto_prefill_batch="prefill_batch" not in sizes,
        auto_chunk="chunk" not in sizes,
        between="chunk" in sizes,
        memory_utilization=share,
    )
    (case,) = request.cases()
    return case


def test_a_long_prompt_is_read_in_chunks_where_it_does_not_fit_whole():
    """Scores of 100,000 tokens with each other, 32 heads, 6 bytes: 1.92 TB."""
    plan = best_of([on_one_chip("llama-3.1-8b", prompt=100_000, output=1000)])
    chunk = plan.decode.setting.workload.chunk
    assert chunk is not None
    scores = 32 * chunk * 100_000 * 6
    read = plan.chosen.memory["reading"]
    assert 0.95 * scores < read.activations < 1.1 * scores
    assert read.kv == 101_000 * KV_8B


def test_a_batch_of_decode_does_not_set_the_prefill_batch():
    plan = best_of([on_one_chip("llama-3-8b", batch=64)])
    assert (plan.decode.batch, plan.prefill.batch) == (64, 1)


def test_the_largest_chunk_that_fits_is_offered():
    """Weights, caches and runtime leave the rest to the scores of a chunk: 64 heads, 6 bytes a score."""
    case = on_one_chip("llama-3.3-70b", "int8", 1.0, prompt=15_000, output=1000, batch=1, chunk=2048)
    flags = refusal(case).partition("smallest change that fits: ")[2]
    chunk = int(flags.removeprefix("--chunk "))
    for size in (chunk, chunk + 1):
        one = case.request.workload.resized(chunk=size)
        fitting = planned(replace(case, request=replace(case.request, workload=one), chunks=(size,)))
        assert (fitting is not None) == (size == chunk)
    weights = plan_weights("llama-3.3-70b")
    room = 80 * GIB - weights - 16_000 * KV_70B - H100_RUNTIME
    # the last whole chunk sees most: it ends within a chunk of the prompt's end
    assert room / (64 * 15_000 * 6) * 0.95 < chunk < room / (64 * (15_000 - chunk) * 6)


def plan_weights(model: str) -> int:
    """Bytes of int8 matrices, their scales, and what stays in bf16, on one chip."""
    case = on_one_chip(model, "int8", 1.0, prompt=128, output=1, batch=1)
    return int(best_of([case]).chosen.memory["decoding"].weights)


def test_all_that_lose_something_are_offered_where_nothing_else_helps():
    """At 0.9 of the memory not even the shortest chunk fits beside weights and cache."""
    case = on_one_chip("llama-3.3-70b", "int8", prompt=15_000, output=1000, batch=1, chunk=2048)
    assert plan_weights("llama-3.3-70b") + 16_000 * KV_70B + H100_RUNTIME > int(0.9 * 80 * GIB)
    offered = refusal(case).partition("smallest change that fits: ")[2].split("; or ")
    kinds = [flags.split()[0] for flags in offered]
    assert kinds == ["--kv", "--prompt", "--on", "--memory-utilization"]
    for flags in offered:
        if not flags.startswith("--on"):
            assert planned(applied(case, flags)) is not None, flags
    prompt = int(offered[1].split()[1])
    longer = applied(case, f"--prompt {prompt + 1} --chunk auto")
    assert planned(longer) is None


def test_a_chip_without_room_for_the_weights_is_offered_no_size():
    """141 GB in bf16; 71 GB in int8, beside which 8 caches of 2,112 tokens have room in int8 only."""
    case = on_one_chip("llama-3-70b", batch=8)
    assert refusal(case).partition("smallest change that fits: ")[2] == (
        "--kv int8 --weights int8; or --on h100:1x2"
    )


def test_the_setting_of_a_pair_has_the_part_that_may_be_used():
    here = Setting(
        catalogue_model("llama-3-8b"),
        parse_cluster("h100:1x1"),
        Mesh.of((1,)),
        Formats(),
        Workload(prompt=128, output=1, batch=1),
        memory_utilization=0.37,
    )
    assert here.capacity_bytes == 37 * 80 * GIB // 100
    assert pair_of(here, "ws1d/heads").prefill.memory_bytes["capacity"] == here.capacity_bytes
