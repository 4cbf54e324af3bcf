"""Layouts: how one copy of the weights is stored, and how a phase uses it on a mesh of known sizes."""

import itertools
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.cost.step import StepOptions, StepShape, price_step
from partita.sharding import (
    ATTENTION_NAMES,
    FFN_NAMES,
    Layout,
    Mesh,
    Storage,
    parse,
    parse_layout,
    parse_roles,
    plan_storage,
    resolve,
)
from partita.sharding.roles import AttentionRole, WeightRole
from partita.specs import Formats, Model

CUBE = Mesh.of((2, 2, 2))


def tiny(heads: int = 8, kv_heads: int = 1, **other) -> Model:
    sizes = {"layers": 2, "d_model": 32, "d_ff": 128, "head_dim": 8, "vocabulary": 50}
    return Model(name="tiny", heads=heads, kv_heads=kv_heads, **{**sizes, **other})


def stored(model: Model, mesh: Mesh, decode: str, prefill: str) -> Storage:
    return plan_storage(model, mesh, parse_layout(decode, mesh.axes), parse_layout(prefill, mesh.axes))


def resolved(layout: str, batch: int, queries: int, mesh: Mesh = CUBE, model: Model | None = None) -> Layout:
    """A layout of its own storage: both phases use it."""
    storage = stored(model or tiny(), mesh, layout, layout)
    return resolve(parse_layout(layout, mesh.axes), storage, mesh, batch, queries)


# -- tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "axes"), [("ws1d", ""), ("ws2d", ""), ("wg-x", "x"), ("wg-xy", "xy"), ("wg-xyz", "xyz")]
)
def test_gathered_axes_split_a_batch_that_is_large_enough(layout: str, axes: str):
    found = resolved(f"{layout}/heads", batch=8, queries=1)
    assert (set(found.tokens_b), found.tokens_l) == (set(axes), "")


@pytest.mark.parametrize("layout", FFN_NAMES)
@pytest.mark.parametrize("attention", ATTENTION_NAMES)
def test_one_token_is_kept_whole(layout: str, attention: str):
    found = resolved(f"{layout}/{attention}", batch=1, queries=1)
    assert (found.batch_axes, found.new_axes) == ("", "")
    assert found.attn_s == ("xyz" if attention == "context" else "")


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 7, 8])
def test_no_batch_is_split_into_more_shards_than_it_has_sequences(batch: int):
    for ffn, attention in itertools.product(FFN_NAMES, ATTENTION_NAMES):
        found = resolved(f"{ffn}/{attention}", batch, queries=1)
        assert 2 ** len(found.tokens_b) <= batch
        assert 2 ** len(found.attn_b) <= batch


@pytest.mark.parametrize(
    ("batch", "queries", "over_batch", "over_queries"),
    [(8, 64, 3, 0), (4, 64, 2, 1), (2, 64, 1, 2), (1, 64, 0, 3), (1, 2, 0, 1), (3, 2, 1, 1), (2, 1, 1, 0)],
)
def test_few_long_sequences_are_split_along_their_query_tokens(
    batch: int, queries: int, over_batch: int, over_queries: int
):
    found = resolved("wg-xyz/heads", batch, queries)
    assert (len(found.tokens_b), len(found.tokens_l)) == (over_batch, over_queries)
    assert not set(found.tokens_b) & set(found.tokens_l)
    assert parse(found.residual)["E"] == ""  # every axis is gathered


@pytest.mark.parametrize("size", [(4, 1, 2), (2, 4, 1)])
def test_an_axis_too_large_for_the_batch_is_passed_over(size: tuple[int, int, int]):
    mesh = Mesh.of(size)
    found = resolved("wg-xyz/heads", batch=2, queries=1, mesh=mesh)
    assert math.prod(mesh.size[axis] for axis in found.tokens_b) == 2


def test_batch_attention_falls_back_to_heads_where_sequences_are_too_few():
    assert set(resolved("ws1d/batch", batch=8, queries=1).attn_b) == set("xyz")
    found = resolved("ws1d/batch", batch=2, queries=1)
    assert (len(found.attn_b), len(found.attn_g)) == (1, 2)
    assert set(found.attn_b + found.attn_g) == set("xyz")
    alone = resolved("ws1d/batch", batch=1, queries=1)
    assert (alone.attn_b, set(alone.attn_g)) == ("", set("xyz"))


def test_roles_of_attention_split_what_they_name():
    found = resolved("x=e,y=f,z=f/x=context,y=heads,z=batch", batch=4, queries=16)
    assert (found.attn_l, found.attn_s, found.attn_g, found.attn_b) == ("x", "x", "y", "z")
    assert (found.cache, found.keys) == ("B_z K_ S_x D", "B_z K_ D S_x")
    whole = resolved("x=e,y=f,z=f/x=none,y=none,z=none", batch=4, queries=16)
    assert (whole.attn_l, whole.attn_s, whole.attn_b, whole.attn_k, whole.attn_g) == ("", "", "", "", "")


@pytest.mark.parametrize(("batch", "queries"), [(1, 1), (1, 5), (3, 2), (8, 64)])
@pytest.mark.parametrize("ffn", FFN_NAMES)
def test_context_is_split_however_short(ffn: str, batch: int, queries: int):
    """A prompt or a cache shorter than its shards is padded; no axis falls back to another split."""
    found = resolved(f"{ffn}/context", batch, queries)
    assert (found.attn_s, found.attn_b + found.attn_k + found.attn_g) == ("xyz", "")
    assert set(found.queries(cached=False)) == set("xyz")
    assert found.queries(cached=True) == ""


def test_few_sequences_do_not_split_the_cache_where_the_batch_was_asked_for():
    found = resolved("wg-xyz/batch", batch=1, queries=64)
    assert (set(found.attn_l), found.attn_s) == (set("xyz"), "")
    assert found.queries(cached=True) == found.attn_l


def test_a_cache_lies_alike_after_any_prefill_over_the_same_context():
    """Positions are in the mesh's order, whatever the queries' order: the switch need not permute it."""
    caches = {resolved(f"{ffn}/context", 1, 64).cache for ffn in FFN_NAMES}
    assert caches == {"B_ K_ S_xyz D"}


@examples(50)
@given(
    weights=st.tuples(*[st.sampled_from(get_args(WeightRole))] * 3),
    attends=st.tuples(*[st.sampled_from(get_args(AttentionRole))] * 3),
    sizes=st.tuples(*[st.integers(1, 4)] * 3),
    batch=st.integers(1, 20),
    queries=st.integers(1, 20),
)
def test_attention_splits_one_thing_over_an_axis(
    weights: tuple[str, ...], attends: tuple[str, ...], sizes: tuple[int, ...], batch: int, queries: int
):
    ffn = ",".join(f"{axis}={role}" for axis, role in zip("xyz", weights, strict=True))
    attention = ",".join(f"{axis}={role}" for axis, role in zip("xyz", attends, strict=True))
    found = resolved(f"{ffn}/{attention}", batch, queries, Mesh.of(sizes))
    split = found.attn_b + found.attn_l + found.attn_k + found.attn_g
    assert len(set(split)) == len(split)
    for axis, role in zip("xyz", attends, strict=True):
        if role == "none":
            assert axis not in split
        if axis in found.attn_b:
            assert role == "batch"
        assert (axis in found.attn_s) == (role == "context")


def test_a_replica_axis_splits_tokens_and_stores_no_weight():
    storage = stored(tiny(), CUBE, "x=replica,y=e,z=f/heads", "x=replica,y=e,z=f/heads")
    assert "x" not in storage.e + storage.f
    found = resolve(parse_layout("x=replica,y=e,z=f/heads", "xyz"), storage, CUBE, 8, 1)
    assert (found.tokens_b, found.residual) == ("x", "B_x L_ E_yz")


# -- heads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes", "padded", "kv_per_chip"),
    [
        (8, 8, (1, 2, 2), (8, 1), 2),  # multi-head: every axis splits K
        (6, 6, (1, 2, 2), (8, 1), 2),  # 6 heads on 4 chips: two of padding
        (6, 6, (1, 2, 3), (6, 1), 1),
        (8, 1, (1, 2, 2), (1, 8), 1),  # multi-query: every axis splits the group
        (6, 1, (1, 2, 2), (1, 8), 1),
        (48, 1, (4, 4, 4), (1, 48), 1),  # PaLM 540B under ws2d: 16 shards of heads
        (9, 3, (1, 2, 2), (4, 3), 1),  # 12 heads; K by 2 and G by 2 would be 4 x 4
        (8, 2, (1, 2, 2), (2, 4), 1),  # one axis splits K, the other G: no padding
        (12, 2, (1, 2, 3), (2, 6), 1),
        (32, 8, (1, 8, 2), (8, 4), 1),
    ],
)
def test_heads_are_split_where_they_pad_least(
    heads: int, kv_heads: int, sizes: tuple[int, ...], padded: tuple[int, int], kv_per_chip: int
):
    mesh, model = Mesh.of(sizes), tiny(heads, kv_heads)
    decode = parse_roles("ws2d", "x=none,y=heads,z=heads", mesh.axes)
    storage = plan_storage(model, mesh, decode, decode)
    found = storage.padded(model, mesh.size)
    assert (found["K"], found["G"]) == padded
    layout = resolve(decode, storage, mesh, 8, 1)
    assert found["K"] // math.prod(mesh.size[axis] for axis in layout.attn_k) == kv_per_chip
    assert set(storage.fk) | set(storage.fg) == set("yz")


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1), (1, 2, 4), (7, 1, 1), (5, 2, 1)])
def test_no_other_split_of_the_heads_pads_less(kv_heads: int, sizes: tuple[int, ...]):
    mesh, model = Mesh.of(sizes), tiny(12, kv_heads)
    found = stored(model, mesh, "ws1d/heads", "ws1d/heads").padded(model, mesh.size)
    shards = (
        (math.prod(sizes[i] for i in chosen), math.prod(sizes) // math.prod(sizes[i] for i in chosen))
        for count in range(4)
        for chosen in itertools.combinations(range(3), count)
    )
    least = min(k * -(-kv_heads // k) * g * -(-model.group // g) for k, g in shards)
    assert found["K"] * found["G"] == least


def test_heads_nothing_splits_are_not_padded():
    model = tiny(6, 6)
    padded = stored(model, CUBE, "x=e,y=e,z=e/batch", "x=e,y=e,z=e/batch").padded(model, CUBE.size)
    assert (padded["K"], padded["G"]) == (6, 1)


# -- storage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefill", [name for name in FFN_NAMES if name != "ws1d"])
@pytest.mark.parametrize("attention", ATTENTION_NAMES)
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_weights_are_stored_once_as_decode_keeps_them(prefill: str, attention: str, kv_heads: int):
    """E_x F_yz for 2D decode, whatever prefill gathers (Pope et al. 2022, section 3.2.3)."""
    model = tiny(kv_heads=kv_heads)
    storage = stored(model, CUBE, f"ws2d/{attention}", f"{prefill}/heads")
    for name, (over_e, over_f) in {"ffn_in": ("x", "yz"), "ffn_out": ("x", "yz")}.items():
        sharding = parse(storage.weights(model)[name])
        assert (set(sharding["E"]), set(sharding["F"])) == (set(over_e), set(over_f))
    decode = resolve(parse_layout(f"ws2d/{attention}", "xyz"), storage, CUBE, 8, 1)
    step = price_step(model, decode, CUBE.size, Formats(), StepShape(8, 1, 16))
    moved = {entry.before for entry in step.ledger.entries if entry.axes}
    assert moved.isdisjoint(storage.weights(model).values())


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("gathered", ["y", "z", "yz"])
def test_axes_that_a_phase_gathers_are_stored_last(gathered: str, kv_heads: int):
    """Only the innermost axes of a dim can be gathered without a permutation."""
    roles = ",".join(f"{axis}=f-gathered" if axis in gathered else f"{axis}=f" for axis in "yz")
    mesh = Mesh.of((2, 2, 4))
    storage = stored(tiny(kv_heads=kv_heads), mesh, "ws2d/heads", f"x=e,{roles}/heads")
    for group in (storage.fg, storage.fk):
        assert list(group) == sorted(group, key=lambda axis: axis in gathered)
    if kv_heads == 1:  # one KV head: no axis splits K
        assert storage.f == {"y": "zy", "z": "yz", "yz": "yz"}[gathered]


def test_axes_attention_trades_for_the_batch_are_stored_after_those_it_does_not():
    mesh = Mesh.of((1, 2, 2))
    decode = "x=e,y=f,z=f/x=none,y=batch,z=heads"
    assert stored(tiny(), mesh, decode, decode).f == "zy"
    assert stored(tiny(), mesh, decode, "x=e,y=f,z=f-gathered/x=none,y=heads,z=heads").f == "yz"


def test_parameters_that_a_model_lacks_are_not_stored():
    plain = tiny(norm_parameters=False, block="parallel")
    names = {"embed", "q", "kv", "o", "ffn_in", "ffn_out"}
    assert set(stored(plain, CUBE, "ws2d/heads", "ws2d/heads").weights(plain)) == names
    full = tiny(tied_embedding=False)
    names |= {"unembed", "norm", "ffn_norm", "final_norm"}
    assert set(stored(full, CUBE, "ws2d/heads", "ws2d/heads").weights(full)) == names


# -- padding ------------------------------------------------------------------------------------------

LAYOUTS = [f"{ffn}/{attention}" for ffn in FFN_NAMES for attention in ATTENTION_NAMES]


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 2, 4), (7, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (9, 3), (10, 1)])
def test_every_dim_divides_in_every_sharding_it_passes_through(
    sizes: tuple[int, ...], heads: int, kv_heads: int
):
    """No size of the model (33, 65, 50, its heads) divides the mesh: padding makes every split even."""
    mesh, model = Mesh.of(sizes), tiny(heads, kv_heads, d_model=33, d_ff=65)
    for prefill, decode in itertools.product(LAYOUTS, LAYOUTS):
        storage = stored(model, mesh, decode, prefill)
        padded = dict(storage.padded(model, mesh.size))
        for name, sharding in storage.weights(model).items():
            assert_divides(sharding, padded, mesh, f"{name} of {prefill} -> {decode}")
        for layout, queries, context in ((prefill, 13, None), (decode, 1, 11)):
            found = resolve(parse_layout(layout, mesh.axes), storage, mesh, 5, queries)
            step = price_step(
                model, found, mesh.size, Formats(), StepShape(5, queries, context), StepOptions(sampler=None)
            )
            tokens = {"B": int(step.batch), "L": int(step.queries), "S": int(step.context)}
            for entry in step.ledger.entries:
                for sharding in (*entry.before, entry.after):
                    sized = padded | tokens | ({"L": 1} if entry.scope == "unembed" else {})
                    assert_divides(str(sharding), sized, mesh, f"{entry.scope} of {prefill} -> {decode}")


def assert_divides(sharding: str, sizes: dict[str, int], mesh: Mesh, where: str) -> None:
    parsed = parse(sharding)
    for dim in parsed.dims:
        shards = math.prod(mesh.size[axis] for axis in parsed[dim])
        assert shards == 1 or sizes[dim] % shards == 0, f"{dim} of {sharding} in {where}"


def test_padding_is_the_least_that_divides():
    model = tiny(6, 6, d_model=33, d_ff=65)
    padded = stored(model, CUBE, "ws2d/heads", "ws2d/heads").padded(model, CUBE.size)
    assert padded == {"E": 40, "F": 72, "V": 56, "K": 8, "G": 1, "D": 8}
    one = Mesh.of((1, 1, 1))
    padded = stored(model, one, "ws2d/heads", "ws2d/heads").padded(model, one.size)
    assert padded == {"E": 33, "F": 65, "V": 50, "K": 6, "G": 1, "D": 8}


# -- permutations -------------------------------------------------------------------------------------

PERMUTES = {
    ("gqa", "ws1d/batch"): {"q"},
    ("gqa", "ws2d/batch"): {"q"},
    ("gqa", "wg-x/heads"): {"kv"},
    ("gqa", "wg-x/batch"): {"q", "kv"},
    ("gqa", "wg-xy/heads"): {"kv", "o"},
    ("gqa", "wg-xy/batch"): {"kv"},
    ("gqa", "wg-xyz/heads"): {"o"},
    ("mqa", "wg-x/heads"): {"kv"},
    ("mqa", "wg-x/batch"): {"kv"},
    ("mqa", "wg-xy/heads"): {"kv"},
    ("mqa", "wg-xy/batch"): {"kv"},
    **{key: {"kv"} for key in itertools.product(("gqa", "mqa"), ("wg-x/context", "wg-xy/context"))},
}
"""Where in attention a shard may be reordered, for want of an order of axes that suits all of it.

q, o: axes of K and axes of G are both traded for the batch, which queries and keys meet in another order.
kv: x is gathered from under other axes that the key/value projection, a small matrix, is split over.
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "kv_heads"), [("mha", 8), ("gqa", 2), ("mqa", 1)])
def test_named_layouts_of_decode_permute_nothing_but_what_is_listed(name: str, kv_heads: int, layout: str):
    model = tiny(8, kv_heads)
    found = resolved(layout, batch=64, queries=1, model=model)
    step = price_step(model, found, CUBE.size, Formats(), StepShape(64, 1, 16))
    permuted = {
        entry.scope.removeprefix("layer/attention/")
        for entry in step.ledger.entries
        if entry.kind == "collective-permute" and entry.messages and entry.scope.startswith("layer")
    }
    assert permuted <= PERMUTES.get((name, layout), set())
