"""Attention at length: 32,768 tokens in chunks within what is predicted, windows in rings, split contexts."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.engine.bench import F32
from tests.sizes import some

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.cost.step import StepOptions, StepShape, price_step
from partita.engine.cache import CachePart
from partita.engine.parameters import place
from partita.engine.steps import Programs
from partita.measure.launches import Launch
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.specs.model import Model

TOKENS, CHUNK, WINDOW = 32_768, 512, 256
NARROW: dict[str, Any] = {
    "name": "narrow",
    "layers": 2,
    "d_model": 32,
    "d_ff": 64,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 16,
    "vocabulary": 64,
}
MODEL = Model.model_validate(NARROW)
WINDOWED = Model.model_validate(NARROW | {"window": WINDOW, "global_period": 2})


def programs_of(model: Model, chips: int, layout: str, queries: int) -> tuple[Programs, Layout]:
    mesh = Mesh.of((chips,))
    roles = parse_layout(layout, mesh.axes)
    programs = Programs(model, mesh, plan_storage(model, mesh, roles, roles), F32)
    return programs, resolve(roles, programs.storage, mesh, 1, queries)


def parameters_of(programs: Programs) -> dict[str, jax.Array]:
    parameters = random_parameters(programs.model, seed=3)
    return place(programs, MemoryCheckpoint(programs.model, parameters))


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def reading(tokens: int) -> tuple[Programs, Layout, Any, Any]:
    """A step that reads a chunk into a cache of so many tokens, compiled, and the cache's shapes."""
    programs, layout = programs_of(WINDOWED, 1, "ws1d/heads", CHUNK)
    shapes = programs.cache(layout, 1, tokens, CHUNK)
    read: Any = programs.read(layout)
    logits, ends = programs.last_logits(layout, 1), jax.ShapeDtypeStruct((), jnp.bool_)
    step = read.lower(programs.parameters(), shapes, logits, ints(1, CHUNK), *[ints(1)] * 3, ends)
    return programs, layout, step.compile(), shapes


def test_a_long_prompt_in_chunks_takes_no_more_than_predicted():
    programs, layout, compiled, _ = reading(TOKENS)
    predicted = price_step(
        WINDOWED,
        layout,
        programs.mesh.size,
        F32,
        StepShape(1, CHUNK, TOKENS),
        StepOptions(run_options=programs.run_options),
    ).memory_bytes
    assert 0.7 * predicted <= Launch(None, ()).held_bytes(compiled) <= predicted
    assert not copies_of_the_cache(compiled.as_text())


@pytest.mark.parametrize("tokens", some(1, [8_192, TOKENS]))
def test_a_long_prompt_in_chunks_is_written_whole(tokens: int):
    programs, layout, compiled, shapes = reading(tokens)
    parameters = parameters_of(programs)
    cache = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype, device=t.sharding), shapes)
    prompt = np.random.default_rng(0).integers(WINDOWED.vocabulary, size=(1, tokens))
    logits: Any = programs.empty(programs.last_logits(layout, 1))
    for start in range(0, tokens, CHUNK):
        chunk, counts = (
            prompt[:, start : start + CHUNK],
            [np.array([n], np.int32) for n in (start, CHUNK, tokens)],
        )
        logits, cache = compiled(
            parameters, cache, logits, np.asarray(chunk, np.int32), *counts, np.bool_(start + CHUNK == tokens)
        )
    assert logits.shape == (1, 1, programs.padded["V"])
    assert np.isfinite(np.asarray(logits)[..., : WINDOWED.vocabulary]).all()
    keys = [np.asarray(pair[0].value) for pair in cache]
    assert all(np.isfinite(each).all() and (abs(each).max(axis=2) > 0).all() for each in keys)  # all written


def copies_of_the_cache(text: str) -> list[str]:
    """What a compiled program copies of keys or values of all tokens, expanded to query heads or not."""
    found = re.findall(r"= (\w+\[([\d,]+)\])\S* (?:copy|transpose|broadcast|concatenate|pad|reshape)\(", text)
    cached = {str(TOKENS), str(MODEL.head_dim)}
    return [array for array, dims in found if cached <= set(dims.split(","))]


def test_a_copy_of_the_cache_would_be_seen():
    expand: Any = jax.jit(lambda keys: jnp.repeat(keys, 2, axis=1) + 1)
    text = expand.lower(jax.ShapeDtypeStruct((1, 1, MODEL.head_dim, TOKENS), jnp.float32)).compile().as_text()
    assert copies_of_the_cache(text)


def test_a_decode_step_holds_less_than_one_layer_of_keys():
    programs, layout = programs_of(MODEL, 1, "ws1d/heads", 1)
    decode: Any = programs.decode(layout)
    step = decode.lower(programs.parameters(), programs.cache(layout, 1, TOKENS), ints(1), ints(1))
    compiled = step.compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * TOKENS * MODEL.head_dim
    assert not copies_of_the_cache(compiled.as_text())


def test_a_local_layer_keeps_its_window_and_the_chunk_only():
    programs, layout = programs_of(WINDOWED, 1, "ws1d/heads", CHUNK)
    for queries in (1, CHUNK):
        cache = programs.cache(layout, 1, TOKENS, queries)
        places = [pair[1].value.shape[2] for pair in cache]
        assert [WINDOWED.is_local(i) for i in range(2)] == [True, False]
        assert places == [WINDOW + queries - 1, TOKENS]


def test_a_split_context_gives_the_logits_of_one_that_is_whole():
    random, last = np.random.default_rng(1), TOKENS - 1
    keys, values = random.standard_normal((2, MODEL.layers, 1, 1, TOKENS, MODEL.head_dim), np.float32)
    found = []
    for chips, name in ((1, "ws1d/heads"), (8, "ws1d/context")):
        programs, layout = programs_of(MODEL, chips, name, 1)
        assert len(layout.attn_s) == (chips == 8)
        order = np.concatenate([np.arange(chip, TOKENS, chips) for chip in range(chips)])
        shapes, cache = programs.cache(layout, 1, TOKENS), []
        for layer, pair in enumerate(shapes):
            parts = (keys[layer][:, :, order].swapaxes(2, 3), values[layer][:, :, order])
            assert pair[0].value.shape == parts[0].shape
            cache.append(
                tuple(
                    CachePart(jax.device_put(part, shape.value.sharding))
                    for part, shape in zip(parts, pair, strict=True)
                )
            )
        held = [np.array([n], np.int32) for n in (last, 1)]
        given = np.array([[5]], np.int32), *held, held[0] + 1, np.bool_(True)
        none = programs.empty(programs.last_logits(layout, 1))
        logits, _ = programs.read(layout)(parameters_of(programs), tuple(cache), none, *given)
        found.append(np.asarray(logits)[0, 0, : MODEL.vocabulary])
    assert abs(found[0]).max() > 0.01
    assert abs(found[0] - found[1]).max() < 1e-4
