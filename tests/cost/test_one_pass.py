"""Many configurations priced in one pass of the program, against each priced alone."""

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.cost.step import Step, StepOptions, StepShape, price_step
from partita.sharding import ATTENTION_NAMES, FFN_NAMES, Mesh, parse_roles, plan_storage, resolve
from partita.specs import Formats, Model

AXES = "xyz"
WEIGHTS = st.one_of(
    st.sampled_from(FFN_NAMES),
    st.tuples(*[st.sampled_from(("e", "f", "e-gathered", "f-gathered", "replica"))] * 3).map(
        lambda roles: ",".join(f"{axis}={role}" for axis, role in zip(AXES, roles, strict=True))
    ),
)
ATTENTION = st.one_of(
    st.sampled_from(ATTENTION_NAMES),
    st.tuples(*[st.sampled_from(("heads", "batch", "context", "none"))] * 3).map(
        lambda roles: ",".join(f"{axis}={role}" for axis, role in zip(AXES, roles, strict=True))
    ),
)
MODELS = st.builds(
    lambda kv_heads, group, windows, **other: Model(
        name="any", heads=kv_heads * group, kv_heads=kv_heads, **windows, **other
    ),
    kv_heads=st.integers(1, 9),
    group=st.integers(1, 9),
    windows=st.fixed_dictionaries({})
    | st.fixed_dictionaries({"window": st.integers(1, 100), "global_period": st.none() | st.integers(1, 3)}),
    layers=st.integers(1, 4),
    d_model=st.integers(1, 300),
    d_ff=st.integers(1, 900),
    head_dim=st.sampled_from((2, 8, 64)),
    vocabulary=st.integers(1, 1000),
    block=st.sampled_from(("serial", "parallel")),
    norm=st.sampled_from(("rmsnorm", "layernorm")),
    norm_parameters=st.booleans(),
    feed_forward=st.sampled_from(("swiglu", "gelu")),
    tied_embedding=st.booleans(),
    qkv_bias=st.booleans(),
    qk_norm=st.booleans(),
)
CANDIDATES = st.lists(
    st.fixed_dictionaries(
        {
            "x": st.integers(1, 5),
            "y": st.integers(1, 5),
            "z": st.integers(1, 5),
            "batch": st.integers(1, 200),
            "queries": st.integers(1, 50),
            "context": st.integers(50, 500),
        }
    ),
    min_size=1,
    max_size=6,
)
FORMATS = st.builds(
    Formats,
    weights=st.sampled_from(("f32", "bf16", "int8")),
    activations=st.sampled_from(("f32", "bf16")),
    kv=st.sampled_from(("f32", "bf16", "int8")),
    reduce=st.sampled_from(("f32", "bf16")),
)
COLUMNS = ("flops", "needed_flops", "weight_bytes", "kv_bytes", "sent_bytes", "messages")
HELD = ("batch", "queries", "context", "weight_bytes", "kv_bytes", "activation_bytes", "memory_bytes")


@examples(40)
@given(
    model=MODELS,
    decode=st.tuples(WEIGHTS, ATTENTION),
    prefill=st.tuples(WEIGHTS, ATTENTION),
    phase=st.sampled_from(("prefill", "prefill, all logits", "decode")),
    candidates=CANDIDATES,
    formats=FORMATS,
)
def test_candidates_priced_in_one_pass_equal_each_priced_alone(
    model: Model,
    decode: tuple[str, str],
    prefill: tuple[str, str],
    phase: str,
    candidates: list[dict[str, int]],
    formats: Formats,
):
    """Equal to rounding: arrays are divided by their shards first, so that large ones are touched least."""
    first = candidates[0]
    mesh = Mesh(AXES, tuple(first[axis] for axis in AXES))
    phases = [parse_roles(*roles, AXES) for roles in (decode, prefill)]
    storage = plan_storage(model, mesh, *phases)
    roles = phases[0] if phase == "decode" else phases[1]
    layout = resolve(roles, storage, mesh, first["batch"], first["queries"])

    def price(column: Any) -> Step:
        return price_step(
            model,
            layout,
            {axis: column(axis) for axis in AXES},
            formats,
            StepShape(column("batch"), column("queries"), column("context") if phase == "decode" else None),
            StepOptions(all_logits=phase == "prefill, all logits"),
        )

    many = price(lambda name: np.array([candidate[name] for candidate in candidates], float))
    for i, candidate in enumerate(candidates):
        alone = price(candidate.__getitem__)
        assert len(alone.ledger.entries) == len(many.ledger.entries)
        for one, other in zip(alone.ledger.entries, many.ledger.entries, strict=True):
            assert (one.scope, one.kind, one.axes, one.repeat) == (
                other.scope,
                other.kind,
                other.axes,
                other.repeat,
            )
            for column in COLUMNS:
                # alone, bytes that do not divide are an exact fraction
                there = at(getattr(other, column), i)
                assert math.isclose(float(getattr(one, column)), there, rel_tol=1e-12), (column, one)
        for column in HELD:
            assert math.isclose(getattr(alone, column), at(getattr(many, column), i), rel_tol=1e-12), column


def at(value: Any, index: int) -> Any:
    """One candidate's number; one that no candidate changes may be a scalar."""
    return value[index] if np.ndim(value) else value
