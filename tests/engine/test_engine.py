"""The engine as its users see it: logits and tokens of prompts, one copy of the weights, refusals."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest
from tests import reference
from tests.combinations import tiny_model
from tests.engine.bench import BF16, BF16_SUMS, OWN_SHAPES, TOLERANCE
from tests.sizes import full

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.cost.step import StepShape, price_step
from partita.engine.devices import devices_for
from partita.engine.engine import Engine
from partita.errors import InputError
from partita.measure.verify import verify
from partita.sharding import Mesh, parse_layout
from partita.specs.formats import Formats
from partita.specs.model import Model, OtherScaling
from partita.specs.sampling import Sampling
from partita.specs.workload import Workload

CUBE = Mesh.of((2, 2, 2))
MODEL = tiny_model(tied=False)
PARAMETERS = random_parameters(MODEL, seed=3)
PROMPTS = [[1, 2, 3], list(range(40, 57)), [100], [7, 7, 7, 7, 7, 7, 7, 7]]


def engine(
    prefill: str = "wg-xyz/heads",
    decode: str = "ws2d/batch",
    mesh: Mesh = CUBE,
    model: Model = MODEL,
    formats: Formats | None = None,
) -> Engine:
    parameters = PARAMETERS if model == MODEL else random_parameters(model, seed=3)
    roles = [parse_layout(layout, mesh.axes) for layout in (prefill, decode)]
    return Engine(MemoryCheckpoint(model, parameters), mesh, *roles, formats=formats, options=OWN_SHAPES)


@pytest.fixture(scope="module")
def usual() -> Engine:
    return engine()


@pytest.mark.parametrize("count", [4, 1])
def test_logits_of_every_token(usual: Engine, count: int):
    found = usual.logits(PROMPTS[:count])
    for ids, logits in zip(PROMPTS[:count], found, strict=True):
        assert logits.dtype == np.float32
        assert logits.shape == (len(ids), MODEL.vocabulary)
        assert abs(logits - reference.logits(MODEL, PARAMETERS, ids)).max() < TOLERANCE


@pytest.mark.parametrize(
    "layout", ["ws1d/heads", "wg-x/x=heads,y=batch,z=batch", full("ws2d/batch"), full("wg-xy/batch")]
)
def test_logits_of_every_token_in_other_layouts(layout: str):
    for ids, logits in zip(PROMPTS, engine(layout, layout).logits(PROMPTS), strict=True):
        assert abs(logits - reference.logits(MODEL, PARAMETERS, ids)).max() < TOLERANCE


def test_tokens_of_prompts_of_different_lengths(usual: Engine):
    expected = [reference.greedy(MODEL, PARAMETERS, ids, 20) for ids in PROMPTS]
    assert usual.generate(PROMPTS, 20) == expected
    assert usual.generate(PROMPTS[1:2], 20) == expected[1:2]
    assert usual.generate(PROMPTS, 1) == [ids[:1] for ids in expected]


def test_generation_ends_before_a_stop_token(usual: Engine):
    whole = usual.generate(PROMPTS, 20)
    stop = frozenset({whole[0][4], whole[1][2]})
    cut = [next((i for i, token in enumerate(ids) if token in stop), 20) for ids in whole]
    assert usual.generate(PROMPTS, 20, stop) == [ids[:n] for ids, n in zip(whole, cut, strict=True)]
    assert cut[0] <= 4
    assert cut[1] <= 2


def test_phases_that_split_few_sequences_over_different_axes():
    """Going from one to the other, the batch is for a moment split over both."""
    model = tiny_model("MQA")
    different = engine("ws1d/x=batch,y=heads,z=heads", "ws1d/x=heads,y=batch,z=heads", model=model)
    parameters = random_parameters(model, seed=3)
    expected = [reference.greedy(model, parameters, ids, 3) for ids in PROMPTS]
    for count in (2, 3):
        assert different.generate(PROMPTS[:count], 3) == expected[:count]


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("wg-xy/context", "ws2d/context"),
        full(("ws2d/heads", "ws1d/x=batch,y=context")),
        full(("ws2d/context", "ws2d/batch")),
    ],
)
def test_tokens_where_the_context_is_split(prefill: str, decode: str):
    """Six chips, three of them in an axis: neither prompts nor the room for them divide."""
    expected = [reference.greedy(MODEL, PARAMETERS, ids, 20) for ids in PROMPTS]
    split = engine(prefill, decode, Mesh.of((2, 3)))
    assert split.generate(PROMPTS[1:], 20) == expected[1:]
    assert split.generate(PROMPTS[2:3], 20) == expected[2:3]


# -- one copy ---------------------------------------------------------------------------------------------


def test_both_phases_use_one_copy_of_the_weights():
    model = tiny_model(d_ff=58)  # a size no other test has, so that its arrays can be recognised
    runs = engine(model=model)
    before = {name: _places(array) for name, array in runs.parameters.items()}
    requests = [Sampling(max_tokens=4, ignore_eos=True)] * len(PROMPTS)
    pieces = runs.written(PROMPTS, requests)
    for _ in range(2 * len(PROMPTS)):  # into the second step
        next(pieces)
    gc.collect()
    shapes = [array.shape for array in jax.live_arrays()]
    matrices = {runs.parameters[f"layers.0.{name}"].shape for name in ("ffn_in", "ffn_out")}
    assert {shape: shapes.count(shape) for shape in matrices} == dict.fromkeys(matrices, model.layers)
    assert len(list(pieces)) == 2 * len(PROMPTS)
    assert {name: _places(array) for name, array in runs.parameters.items()} == before


def test_each_device_holds_the_bytes_that_the_cost_model_says():
    for layouts in (
        ("wg-xyz/heads", "ws2d/batch"),
        ("ws1d/heads", "ws1d/heads"),
        ("ws2d/batch", "wg-xy/batch"),
        ("ws2d/context", "ws2d/x=context,y=batch,z=context"),
    ):
        runs = engine(*layouts, formats=BF16)
        layout = runs.batch(PROMPTS).decode
        step = price_step(MODEL, layout, CUBE.size, BF16, StepShape(4, 1, 32))
        held = dict.fromkeys(jax.devices(), 0)
        for array in runs.parameters.values():
            for shard in array.addressable_shards:
                held[shard.device] += shard.data.nbytes
        assert set(held.values()) == {int(step.weight_bytes)}
        parts = jax.tree.leaves(runs.programs.cache(layout, 4, 32))
        shards = [part.sharding.shard_shape(part.shape) for part in parts]
        sizes = [np.prod(shard) * part.dtype.itemsize for shard, part in zip(shards, parts, strict=True)]
        assert sum(sizes) == step.kv_bytes


def test_weights_are_whole_in_their_padding():
    runs = engine()
    padded = runs.storage.padded(MODEL, CUBE.size)
    q = np.asarray(runs.parameters["layers.1.q"])
    assert q.shape == (padded["E"], padded["K"], padded["G"], padded["D"])
    kept = q[:48, :3, :2]
    assert (kept == PARAMETERS["layers.1.q"]).all()
    assert abs(q).sum(dtype=np.float64) == pytest.approx(abs(kept).sum(dtype=np.float64), rel=1e-12)


def test_the_cache_is_donated_at_every_step(usual: Engine):
    batch = usual.batch(PROMPTS)
    _, kv = usual.programs.prefill(batch.prefill)(usual.parameters, batch.tokens, batch.lengths)
    tokens = np.zeros_like(batch.lengths)
    cache = usual.programs.reshard_cache(batch.prefill, batch.decode, 32)(kv, batch.lengths)
    places = jax.tree.map(_places, cache)
    for step in range(3):
        old = cache
        _, _, cache = usual.programs.decode(batch.decode)(usual.parameters, old, tokens, batch.lengths + step)
        assert all(array.is_deleted() for array in jax.tree.leaves(old))
    assert jax.tree.map(_places, cache) == places
    assert not any(array.is_deleted() for array in usual.parameters.values())


def _places(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def test_progress_counts_every_parameter():
    seen = []
    roles = parse_layout("ws2d/batch", "xyz")
    Engine(MemoryCheckpoint(MODEL, PARAMETERS), CUBE, roles, roles, progress=lambda *at: seen.append(at))
    assert seen == [(i + 1, len(PARAMETERS)) for i in range(len(PARAMETERS))]


# -- bfloat16 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formats", "attention"),
    [(BF16_SUMS, "context"), full((BF16, "heads")), full((BF16, "context")), full((BF16_SUMS, "heads"))],
    ids=["sums in bfloat16", "sums in float32", "context", "heads"],
)
def test_bfloat16_stays_near_the_reference(formats: Formats, attention: str):
    runs = engine(f"wg-xyz/{attention}", "ws2d/batch", formats=formats)
    # bfloat16 has 8 bits: errors near 2^-8 of logits near 1, over two layers and their norms
    off = [
        abs(logits - reference.logits(MODEL, PARAMETERS, ids))
        for ids, logits in zip(PROMPTS, runs.logits(PROMPTS), strict=True)
    ]
    assert 1e-4 < max(o.max() for o in off) < 0.1
    assert [len(ids) for ids in runs.generate(PROMPTS, 12)] == [12] * len(PROMPTS)


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "field", "accepted"),
    [
        ([], "prompt", "at least one prompt"),
        ([[1], []], "prompt", "at least one token"),
        ([[1, 101]], "prompt", "0 to 100"),
        ([[-1]], "prompt", "0 to 100"),
    ],
    ids=str,
)
def test_impossible_prompts(usual: Engine, prompts: list[list[int]], field: str, accepted: str):
    for ask in (lambda: usual.logits(prompts), lambda: usual.generate(prompts, 2)):
        with pytest.raises(InputError, match=accepted) as error:
            ask()
        assert error.value.field == field


def test_lengths_that_the_model_does_not_take():
    short = engine(model=MODEL.model_copy(update={"max_context": 18}))
    assert len(short.generate(PROMPTS, 1)[0]) == 1  # the longest prompt has 17 tokens
    with pytest.raises(InputError, match=r"prompt 17 \+ output 2 exceeds the 18 tokens") as error:
        short.generate(PROMPTS, 2)
    assert (error.value.field, error.value.value) == ("context", 19)
    with pytest.raises(InputError, match="a prompt of 19 exceeds the 18 tokens"):
        short.logits([[1] * 19])
    with pytest.raises(InputError, match="from 1 to") as error:
        short.generate(PROMPTS, 0)
    assert error.value.field == "max_tokens"


@pytest.mark.parametrize(
    ("changes", "feature"),
    [({"rotary_scaling": OtherScaling(name="longrope")}, "longrope rotary scaling")],
    ids=str,
)
def test_models_that_can_only_be_planned_for(changes: dict, feature: str):
    model = MODEL.model_copy(update=changes)
    with pytest.raises(InputError, match=feature) as error:
        engine(model=model)
    assert (error.value.field, error.value.value) == ("model", model.name)
    roles = parse_layout("ws2d/batch", "xyz")
    with pytest.raises(InputError, match=feature):
        next(verify(model, CUBE, [(roles, roles)], BF16, Workload(prompt=8, output=1, batch=8, context=16)))


def test_devices_for_a_mesh():
    assert devices_for(8) == devices_for(8, 8) == jax.devices()
    assert devices_for(2) == jax.devices()[:2]
    for count, ask, field, accepted in [
        (8, 4, "mesh", "4"),
        (16, None, "mesh", "8"),
        (1, 0, "devices", "1 or more"),
    ]:
        with pytest.raises(InputError, match=accepted) as error:
            devices_for(count, ask)
        assert error.value.field == field


def test_steps_compile_once_for_a_shape_whatever_is_asked():
    runs = engine()
    mixes: list[list[Sampling]] = [
        [Sampling(max_tokens=n + 2) for n in range(4)],
        [Sampling(max_tokens=5, temperature=0.7, seed=n) for n in range(4)],
        [Sampling(max_tokens=3), Sampling(max_tokens=6, temperature=1, logprobs=2, seed=1)] * 2,
    ]
    for mix in mixes:
        runs.complete(PROMPTS, mix)
    traced = runs.programs.traced
    for mix in (*mixes, mixes[0][::-1], [*mixes[1][:2], *mixes[2][:2]]):
        runs.complete(PROMPTS, mix)
    assert runs.programs.traced == traced
    assert runs.programs.decode.cache_info().currsize == 1
