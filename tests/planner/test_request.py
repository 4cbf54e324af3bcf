"""What is left to the planner, as the cases it is made of."""

from dataclasses import replace

import pytest

from partita.errors import InputError
from partita.planner.plan import best_plan
from partita.planner.request import BATCHES, PlanRequest, formats_of
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def request(*clusters: str, model: str = "smollm2-135m", **more) -> PlanRequest:
    """A request for one batch of prompts of 2048 tokens by default."""
    sizes = {"prompt": 2048, "output": 64, "batch": 24} | more.pop("workload", {})
    given = {"formats": (Formats(),), "objective": "cost"} | more
    on = tuple(map(parse_cluster, clusters or ("h100:1x8",)))
    return PlanRequest(model=catalogue_model(model), clusters=on, workload=Workload(**sizes), **given)


# -- batches ----------------------------------------------------------------------------------------------


def test_a_batch_that_is_given_is_the_only_one():
    assert request().batches(8) == (24,)
    assert request().prefill_batches(8) == (24,)


def test_batches_are_powers_of_two_and_multiples_of_the_chips():
    given = request(auto_batch=True)
    assert given.batches(64) == BATCHES == tuple(2**i for i in range(13))
    found = given.batches(72)
    assert set(found) - set(BATCHES) == {72, 144, 288, 576, 1152, 2304}
    assert list(found) == sorted(found)
    assert [case.batches for case in request("gb200:1x72", auto_batch=True).cases()] == [found]


@pytest.mark.parametrize("objective", ["latency", "context"])
def test_one_sequence_is_quickest_but_may_not_sustain_a_rate(objective: str):
    given = request(auto_batch=True, objective=objective)
    assert given.batches(8) == (1,)
    assert replace(given, rate=5.0).batches(8) == BATCHES


def test_prefill_batches_have_the_divisors_of_the_prompts():
    given = request(auto_prefill_batch=True)
    assert given.prefill_batches(8) == (1, 2, 3, 4, 6, 8, 12, 16, 24)
    shared = request(auto_prefill_batch=True, workload={"samples": 4})  # 24 sequences, 6 prompts
    assert shared.prefill_batches(8) == (1, 2, 3, 4, 6)


def test_prefill_batches_go_up_to_the_prompts_of_the_largest_batch():
    assert request(auto_batch=True).prefill_batches(8)[-1] == BATCHES[-1]
    assert request(auto_batch=True, workload={"samples": 4}).prefill_batches(8)[-1] == BATCHES[-1] // 4
    assert request(auto_batch=True, objective="latency").prefill_batches(8) == (1,)


# -- chunks, stages, formats ------------------------------------------------------------------------------


def test_chunks_are_shorter_than_what_is_new_of_a_prompt():
    assert request().chunks == (None,)
    assert request(workload={"chunk": 100}).chunks == (100,)
    given = request(auto_chunk=True)
    assert given.chunks == (None, 128, 256, 512, 1024)
    assert request(auto_chunk=True, workload={"prefix": 1600}).chunks == (None, 128, 256)
    (case,) = given.cases()
    assert [case.tokens_of(chunk) for chunk in case.chunks] == [2048, 128, 256, 512, 1024]


def test_open_chunks_have_no_more_tokens_than_a_prompt():
    (case,) = request(auto_chunk=True, auto_batch=True, workload={"prompt": 600}).cases()
    chunked = [portion for portion in case.portions if portion.chunk is not None]
    assert chunked == [(1, 128), (2, 128), (4, 128), (1, 256), (2, 256), (1, 512)]
    whole = [portion.batch for portion in case.portions if portion.chunk is None]
    assert tuple(whole) == case.prefill_batches
    (given,) = request(auto_batch=True, workload={"prompt": 600, "chunk": 512}).cases()
    assert {portion.batch for portion in given.portions} == set(case.prefill_batches)


def test_a_chunk_is_read_between_decode_steps_where_one_was_asked_for():
    assert not any(case.interleaved for case in request().cases())
    assert all(case.interleaved for case in request(auto_chunk=True).cases())
    assert all(case.interleaved for case in request(workload={"chunk": 64}).cases())
    assert not any(case.interleaved for case in request(auto_chunk=True, between=False).cases())


@pytest.mark.parametrize(
    ("cluster", "stages"),
    [
        ("h100:1x8", [1]),  # a node is not divided
        ("h100:7x8", [1, 7]),
        ("h100:12x8", [1, 2, 3, 4, 6, 12]),
        ("h100:32x8", [1, 2, 4, 8, 16]),  # of 30 layers
        ("tpu-v4:4x4x4", [1]),
    ],
)
def test_stages_divide_the_nodes_and_have_a_layer_each(cluster: str, stages: list[int]):
    assert [case.stages for case in request(cluster).cases()] == stages


def test_stages_that_are_given_are_the_only_ones():
    assert [case.stages for case in request("h100:4x8", stages=2).cases()] == [2]
    for wrong, cluster in ((3, "h100:4x8"), (32, "h100:32x8")):
        with pytest.raises(InputError) as caught:
            request(cluster, stages=wrong).cases()
        assert (caught.value.field, caught.value.value) == ("stages", wrong)


def test_a_mesh_is_for_one_cluster_that_it_fits_and_for_no_stages():
    mesh = Mesh.of((4, 8))
    assert [case.stages for case in request("h100:4x8", mesh=mesh).cases()] == [1]
    for clusters in (("h100:4x8", "h100:2x8"), ("h100:1x8",)):
        with pytest.raises(InputError) as caught:
            request(*clusters, mesh=mesh).cases()
        assert caught.value.field == "mesh"


def test_everything_open_is_asked_together():
    formats = formats_of(["bf16", "int8"], ["bf16", "int8"], "bf16", "f32")
    assert [(each.weights, each.kv) for each in formats] == [
        ("bf16", "bf16"), ("bf16", "int8"), ("int8", "bf16"), ("int8", "int8")
    ]  # fmt: skip
    found = request("h100:1x8", "h100:2x8", formats=formats, auto_chunk=True).cases()
    assert len(found) == (1 + 2) * 4
    assert len({(q.cluster.name, q.stages, q.formats) for q in found}) == len(found)
    assert {q.chunks for q in found} == {(None, 128, 256, 512, 1024)}


# -- memory -----------------------------------------------------------------------------------------------


def test_no_more_memory_is_used_than_may_be():
    chip = parse_cluster("h100:1x8").chip
    given = request(model="llama-3-70b", auto_batch=True)
    free = best_plan(replace(given, top=1)).chosen
    limit = chip.hbm_bytes // 2
    assert max(p.memory_bytes["total"] for p in (free.prefill, free.decode)) > limit
    kept = best_plan(replace(given, memory_bytes=limit, top=1)).chosen
    for phase in (kept.prefill, kept.decode):
        assert phase.memory_bytes["total"] <= phase.memory_bytes["capacity"] == limit
    assert kept.score("cost") > free.score("cost")
    assert 1 < kept.decode.batch < free.decode.batch


@pytest.mark.parametrize("more", [0, 1])
def test_memory_is_more_than_the_runtimes_and_no_more_than_the_chips(more: int):
    chip = parse_cluster("h100:1x8").chip
    wrong = chip.hbm_bytes + 1 if more else chip.runtime_bytes
    with pytest.raises(InputError, match=f"at most the {chip.hbm_bytes:,} of {chip.name}") as caught:
        request(memory_bytes=wrong).cases()
    assert (caught.value.field, caught.value.value) == ("memory", wrong)
    assert request(memory_bytes=chip.hbm_bytes).cases()[0].cluster.chip.hbm_bytes == chip.hbm_bytes
