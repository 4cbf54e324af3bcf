"""Chunked prefill and cached prefixes: what is computed, read, kept and in which steps."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.cost.prediction import Prediction, Setting, predict
from partita.cost.schedule import prefill_chunks
from partita.cost.setting import stage_of
from partita.cost.step import StepShape, price_step
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import (
    Chip,
    Cluster,
    Formats,
    Model,
    PhysicalAxis,
    Workload,
    catalogue_model,
    parse_cluster,
)

CHIP = Chip(name="gpu", peak_flops={"bf16": 1e12}, hbm_bytes=2**30, hbm_bandwidth=1e10)
TINY = Model(name="tiny", layers=3, d_model=48, d_ff=96, heads=6, kv_heads=2, head_dim=8, vocabulary=130)
WINDOWED = TINY.model_copy(update={"window": 10, "global_period": 3})
LAYOUTS = ("ws1d/heads", "ws2d/batch", "ws2d/context", "wg-x/batch", "wg-xyz/heads")


def nodes(count: int = 2) -> Cluster:
    fabric = (
        PhysicalAxis(kind="network", size=count, link_bandwidth=1e8),
        PhysicalAxis(kind="switch", size=2, link_bandwidth=1e9),
    )
    return Cluster(name="nodes", chip=CHIP, fabric=fabric)


def prefill(layout: str = "ws1d/heads", model: Model = TINY, stages: int = 1, **sizes: Any) -> Prediction:
    on = nodes()
    mesh = Mesh.of(stage_of(on, stages).shape)
    workload = Workload(**({"prompt": 40, "output": 3, "batch": 4} | sizes))
    setting = Setting(model, on, mesh, Formats(), workload, stages)
    return predict(setting, "prefill", parse_layout(layout, mesh.axes))


# -- which tokens in which step -------------------------------------------------------------------------


@given(prompt=st.integers(1, 500), data=st.data())
def test_chunks_read_every_new_token_once_and_see_all_before_it(prompt: int, data: st.DataObject):
    prefix = data.draw(st.integers(0, prompt - 1))
    chunk = data.draw(st.none() | st.integers(1, 600))
    read = []
    turns = prefill_chunks(prompt, prefix, chunk)
    assert [turn.last for turn in turns] == [False] * (len(turns) - 1) + [True]
    for turn in turns:
        for end in np.atleast_1d(prompt if turn.context is None else turn.context).astype(int):
            assert turn.queries == chunk or (turn.last and turn.queries <= (chunk or prompt))
            read += range(end - turn.queries, end)
    assert read == list(range(prefix, prompt))


# -- what a mask leaves ---------------------------------------------------------------------------------


@examples(20)
@given(
    queries=st.integers(1, 30),
    before=st.integers(0, 60),
    window=st.none() | st.integers(1, 40),
    batch=st.integers(1, 3),
)
def test_attention_counts_exactly_the_pairs_that_the_mask_leaves(
    queries: int, before: int, window: int | None, batch: int
):
    """FLOPs of both products of a layer, against masks written out; and the cache that must be read."""
    model = TINY.model_copy(update={"layers": 1, "window": window})
    mesh, roles = Mesh.of((1,)), parse_layout("ws1d/heads", "x")
    layout = resolve(roles, plan_storage(model, mesh, roles, roles), mesh, batch, queries)
    context = queries + before
    step = price_step(model, layout, mesh.size, Formats(), StepShape(batch, queries, context))
    query = np.arange(before, context)[:, None]
    position = np.arange(context)[None, :]
    mask = (position <= query) & (position > query - (window or context))
    products = [e for e in step.ledger.entries if "attend" in e.scope and e.kind == "einsum"]
    assert len(products) == 2
    for entry in products:
        assert entry.needed_flops == pytest.approx(2 * batch * mask.sum() * 6 * 8)
    seen_by_first = mask[0].sum()  # what is behind it the step has just made itself
    assert sum(entry.kv_bytes for entry in products) == pytest.approx(batch * seen_by_first * 2 * 2 * 8 * 2)


@examples(10)
@given(
    layout=st.sampled_from(LAYOUTS),
    windowed=st.booleans(),
    prefix=st.integers(0, 9),
    chunk=st.integers(1, 12),
)
def test_chunks_compute_what_the_whole_does(layout: str, windowed: bool, prefix: int, chunk: int):
    """Where nothing is padded, the needed FLOPs of all chunks are those of one step, but for the logits."""
    model, prefix, chunk = WINDOWED if windowed else TINY, 4 * prefix, 4 * chunk

    def flops(found: Prediction) -> float:
        total = 0.0
        for turn in found.run.chunks:
            step = price_step(
                model,
                found.run.layout(turn),
                found.setting.mesh.size,
                Formats(),
                StepShape(4, turn.queries, turn.context),
            )
            inside = [e for e in step.ledger.entries if e.scope.startswith("layer")]
            each = sum(e.needed_flops * e.repeat for e in inside)
            steps = turn.context.shape if isinstance(turn.context, np.ndarray) else 1
            total += float(np.sum(np.broadcast_to(each, steps)))
        return total

    whole = prefill(layout, model, prefix=prefix)
    assert flops(prefill(layout, model, prefix=prefix, chunk=chunk)) == pytest.approx(flops(whole))


# -- time -----------------------------------------------------------------------------------------------


@examples(10)
@given(
    layout=st.sampled_from(LAYOUTS),
    stages=st.sampled_from((1, 2)),
    prefix=st.integers(0, 39),
    more=st.integers(0, 100),
)
def test_a_chunk_of_the_whole_prompt_is_no_chunk(layout: str, stages: int, prefix: int, more: int):
    whole = prefill(layout, stages=stages, prefix=prefix)
    chunked = prefill(layout, stages=stages, prefix=prefix, chunk=40 - prefix + more)
    assert (whole.steps, chunked.steps) == (1, 1)
    own = {"workload", "max_context"}  # a longer prompt would be read in chunks
    mine, theirs = whole.as_json(), chunked.as_json()
    assert {k: v for k, v in mine.items() if k not in own} == {
        k: v for k, v in theirs.items() if k not in own
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("prefix", "chunk"), [(0, 12), (0, 10), (5, 7), (39, 1), (0, 1)])
def test_a_chunked_prefill_is_the_sum_of_its_chunks(layout: str, prefix: int, chunk: int):
    found = prefill(layout, prefix=prefix, chunk=chunk)
    setting, total, longest = found.setting, 0.0, 0.0
    ends = [*range(prefix + chunk, 40, chunk), 40]
    assert found.steps == len(ends)
    for start, end in zip([prefix, *ends], ends, strict=False):
        chunked = len(ends) > 1 or prefix > 0
        work = found.run
        step = price_step(
            TINY,
            resolve(work.roles, work.storage, setting.mesh, 4, end - start),
            setting.mesh.size,
            Formats(),
            StepShape(4, end - start, end if chunked else None),
            part=setting.parts[0] if end == 40 else type(setting.parts[0])(3, 0, unembeds=False),
        )
        seconds = step_bound(found, step)
        total, longest = total + seconds, max(longest, seconds)
    assert found.total_seconds == pytest.approx(total, rel=1e-12)
    assert found.step_seconds == pytest.approx(longest, rel=1e-12)
    assert found.tokens_per_step == 4 * min(chunk, 40 - prefix)


def step_bound(found: Prediction, step: Any) -> float:
    """The roofline, written out."""
    ledger, peaks = step.ledger, found.setting.peaks
    compute = ledger.total("needed_flops") / peaks.flops
    memory = (ledger.total("weight_bytes") + ledger.total("kv_bytes")) / peaks.memory_bytes
    sent = sum(peaks.links.seconds(e.kind, e.axes, e.sent_bytes) * e.repeat for e in ledger.entries if e.axes)
    return float(max(compute, memory) + sent)


def test_chunks_of_two_stages_overlap():
    """Chunk by chunk, each of both microbatches, through two stages: event by event."""
    found = prefill(stages=2, chunk=12, prefix=3)
    work = found.run
    free = [0.0, 0.0, 0.0]
    for end in (15, 27, 39, 40):
        last = end == 40
        turn = work.chunks[-1] if last else type(work.chunks[0])(12, end, last=False)
        first, second = (float(t) for t in work.stage_seconds(turn))
        for _ in range(2):
            ready = 0.0
            for i, taken in enumerate((first, float(work.hop_seconds(turn)), second)):
                ready = free[i] = max(ready, free[i]) + taken
    assert found.total_seconds == pytest.approx(free[-1])
    one_by_one = sum(work.step_seconds(turn) for turn in work.ends)
    assert found.total_seconds < 3 * work.step_seconds(work.ends[0]) + one_by_one


def test_a_cached_prefix_saves_time_and_reading_in_chunks_costs_it():
    """PaLM 540B on 64 chips, 2048 tokens: small chunks read the weights time and again."""
    palm, on = catalogue_model("palm-540b"), parse_cluster("tpu-v4:4x4x4")

    def seconds(**sizes: Any) -> float:
        workload = Workload(prompt=2048, output=64, batch=1, **sizes)
        setting = Setting(palm, on, Mesh.of((4, 4, 4)), Formats(weights="int8"), workload)
        return predict(setting, "prefill", parse_layout("ws2d/heads", "xyz")).total_seconds

    cached = [seconds(prefix=prefix) for prefix in (0, 512, 1024, 1536, 1920, 2047)]
    assert cached == sorted(cached, reverse=True)
    assert cached[-1] < cached[0] / 20
    chunked = [seconds(chunk=chunk) for chunk in (2048, 1024, 256, 64, 16)]
    assert all(more >= less * (1 - 1e-9) for less, more in pairwise(chunked))
    assert chunked[-1] > 5 * chunked[0]


# -- memory ---------------------------------------------------------------------------------------------


@examples(10)
@given(
    layout=st.sampled_from(LAYOUTS),
    windowed=st.booleans(),
    stages=st.sampled_from((1, 2)),
    prefix=st.integers(0, 39),
    chunk=st.none() | st.integers(1, 50),
)
def test_prefix_and_new_tokens_are_the_whole_cache(
    layout: str, windowed: bool, stages: int, prefix: int, chunk: int | None
):
    model = WINDOWED if windowed else TINY
    whole = prefill(layout, model, stages)
    found = prefill(layout, model, stages, prefix=prefix, chunk=chunk)
    memory = found.memory_bytes
    if windowed:  # a chunk's first token sees what its last does not: `test_windows.py` has how much
        unwindowed = prefill(layout, TINY, stages).memory_bytes["kv"]
        assert whole.memory_bytes["kv"] <= memory["kv"] <= unwindowed
    else:
        assert memory["kv"] == whole.memory_bytes["kv"]
    assert memory["weights"] == whole.memory_bytes["weights"]
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "activations", "runtime"))
    assert memory["activations"] <= whole.memory_bytes["activations"] * 1.0001 or "context" in layout


def test_small_chunks_need_less_room():
    sizes = [prefill(prompt=400, chunk=chunk).memory_bytes["activations"] for chunk in (400, 200, 100, 50)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 4


# -- samples --------------------------------------------------------------------------------------------


def test_one_prefill_serves_all_samples_of_its_prompt():
    assert prefill(batch=12, samples=4).as_json()["batch"] == 3
    alike = prefill(batch=3)
    found = prefill(batch=12, samples=4)
    assert found.total_seconds == alike.total_seconds
    assert found.memory_bytes == alike.memory_bytes
    decode = predict(found.setting, "decode", found.layout.roles)
    assert (decode.batch, decode.tokens_per_step) == (12, 12)
