"""Steps compiled for the clock: on two CPU devices they run, again and again, on shapes that were padded."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from tests.checkpoints.tiny_gguf import TINY

from partita.engine.engine import EngineOptions
from partita.engine.steps import Programs
from partita.measure import launches
from partita.measure.launches import Steps, filled
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles, parse_roles
from partita.specs import Formats
from partita.specs.profile import Phase

MESH = Mesh.of((2,))
F32 = Formats(weights="f32", activations="f32", kv="f32")


def stored(ffn: str, attention: str) -> tuple[Steps, Roles]:
    roles = parse_roles(ffn, attention, MESH.axes)
    storage = plan_storage(TINY, MESH, roles, roles)
    return Steps(TINY, MESH, storage, F32, EngineOptions(jax.devices()[:2])), roles


@pytest.mark.parametrize(
    ("ffn", "attention", "rows"),
    [("ws1d", "heads", 3), ("ws2d", "batch", 4), ("wg-x", "batch", 4), ("ws1d", "context", 3)],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_step_gives_a_token_for_every_sequence(phase: Phase, ffn: str, attention: str, rows: int):
    """Launches of three sequences; where they are split over two chips a fourth is made up."""
    made, roles = stored(ffn, attention)
    run = made.ready(roles, phase, batch=3, tokens=5)  # five tokens over two chips are six
    first = np.asarray(run())
    assert (first.shape, first.dtype) == ((rows,), np.int32)
    assert ((first >= 0) & (first < TINY.vocabulary)).all()
    assert len(set(first.tolist())) == 1  # all sequences are alike


def test_a_prefill_step_runs_again_and_gives_the_same():
    made, roles = stored("ws1d", "heads")
    run = made.ready(roles, "prefill", batch=2, tokens=4)
    assert np.asarray(run()).tolist() == np.asarray(run()).tolist()


def test_decodes_cache_is_given_away_and_the_step_runs_on_what_comes_back(monkeypatch: pytest.MonkeyPatch):
    caches: list[Any] = []

    def compiled(step, *args):
        inner = step.lower(*args).compile()

        def run(*arguments):
            if isinstance(arguments[1], tuple):  # those of the step; the draw has none
                caches.append(arguments[1])
            return inner(*arguments)

        return run

    monkeypatch.setattr(launches, "_compiled", compiled)
    made, roles = stored("ws1d", "heads")
    run = made.ready(roles, "decode", batch=2, tokens=6)
    for _ in range(3):
        jax.block_until_ready(run())
    assert len({id(cache) for cache in caches}) == 3
    assert all(array.is_deleted() for array in jax.tree.leaves(caches))
    # keys [B K D S], values [B K S D] of each layer
    pair = [(2, TINY.kv_heads, TINY.head_dim, 6), (2, TINY.kv_heads, 6, TINY.head_dim)]
    for cache in caches:
        held, first = jax.tree.leaves(cache), jax.tree.leaves(caches[0])
        assert [array.shape for array in held] == pair * TINY.layers
        assert [array.sharding for array in held] == [array.sharding for array in first]


def test_steps_of_layouts_that_store_alike_use_the_same_weights():
    made, roles = stored("ws1d", "heads")
    other = parse_roles("ws1d", "batch", MESH.axes)
    before = {name: id(value) for name, value in made.parameters.items()}
    for each in (roles, other):
        jax.block_until_ready(made.ready(each, "decode", batch=2, tokens=4)())
    assert {name: id(value) for name, value in made.parameters.items()} == before
    assert not any(value.is_deleted() for value in made.parameters.values())


def test_weights_have_the_shapes_and_places_of_the_engines_and_no_subnormal_number():
    made, _ = stored("ws2d", "batch")
    programs: Programs = made.programs
    assert made.parameters.keys() == programs.parameters().keys()
    for name, target in programs.parameters().items():
        found = made.parameters[name]
        assert (found.shape, found.dtype, found.sharding) == (target.shape, target.dtype, target.sharding)
        assert (np.asarray(found) == np.float32(0.01)).all()
    assert filled(programs.parameters()["embed"]).is_deleted() is False
