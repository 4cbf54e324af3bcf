"""int8 on eight devices: each layout equals the reference on what the int8 numbers stand for, and exactly as
many bytes move as priced."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests import reference
from tests.checkpoints.in_memory import in_int8
from tests.combinations import tiny_model
from tests.engine.bench import OWN_SHAPES, QUICK, TOLERANCE, replicas_agree

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.cache import CachePart
from partita.engine.engine import Engine
from partita.engine.requests import IDLE, arrays
from partita.engine.steps import Programs
from partita.measure.verify import check_prefill, verify
from partita.sharding import Mesh, parse_layout, plan_storage
from partita.sharding.interleave import from_blocks
from partita.sharding.layout import Layout, resolve
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.parameters import all_parameters
from partita.specs.workload import Workload

CUBE = Mesh.of((2, 2, 2))
BIASED = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
MODELS = {
    "grouped, serial, biased": tiny_model("GQA", tied=False).model_copy(update=BIASED),
    "multi-query, parallel": tiny_model("MQA", block="parallel"),
    "grouped, parallel, biased": tiny_model(
        "GQA", "layernorm", "parallel", "gelu", positions="none"
    ).model_copy(update=BIASED),
    "multi-query, serial": tiny_model("MQA", "layernorm", feed_forward="gelu", tied=False),
}
LAYOUTS = [f"{f}/{a}" for f, a in product(("ws1d", "ws2d", "wg-xyz"), ("heads", "batch", "context"))]
PAIRS = [(prefill, LAYOUTS[(i + 4) % len(LAYOUTS)]) for i, prefill in enumerate(LAYOUTS)]
COVERED = [
    pytest.param(
        model, pair, id=f"{name}, {' then '.join(pair)}", marks=[pytest.mark.full] if (i + j) % 4 else []
    )
    for i, pair in enumerate(PAIRS)
    for j, (name, model) in enumerate(MODELS.items())
    if (i + j) % 4 < 2
]
"""Every layout in both phases, the models in turn; in the full run with grouped and with multi-query
attention."""
PROMPTS = [[1, 2, 3], list(range(40, 53)), [100], [7] * 8]
STEPS = 4


def formats(kv: str) -> Formats:
    return Formats.model_validate({"weights": "int8", "activations": "f32", "kv": kv})


def engine(model: Model, prefill: str, decode: str, kv: str) -> Engine:
    roles = [parse_layout(layout, CUBE.axes) for layout in (prefill, decode)]
    return Engine(floats(model), CUBE, *roles, formats=formats(kv), options=OWN_SHAPES)


def floats(model: Model) -> MemoryCheckpoint:
    return MemoryCheckpoint(model, random_parameters(model, seed=5))


def stood_for(model: Model) -> dict[str, np.ndarray]:
    """The floats that a model's int8 parameters stand for."""
    held = in_int8(floats(model))
    return {name: held.read(name) for name in all_parameters(model)}


def run(on: Engine) -> tuple[np.ndarray, np.ndarray, Any, Layout]:
    """Tokens [steps, B] and logits [steps, B, V] of prefill and decode, the last cache and its layout."""
    batch, programs = on.batch(PROMPTS), on.programs
    args = on.parameters, batch.tokens, batch.lengths
    settings = arrays([IDLE] * len(batch.lengths)), batch.lengths, {}, None
    logits, kv = compiled(programs.prefill(batch.prefill), *args)(*args)
    rows = np.arange(len(batch.lengths), dtype=np.int32)
    first = programs.draws.first(batch.prefill, batch.decode, "greedy")
    tokens = first(logits, rows, *settings).tokens
    cache = programs.reshard_cache(batch.prefill, batch.decode, 32)(kv, batch.lengths)
    positions, found = batch.lengths, [(tokens, logits)]
    step = compiled(programs.decode(batch.decode), on.parameters, cache, tokens, positions)
    for _ in range(STEPS):
        logits, positions, cache = step(on.parameters, cache, tokens, positions)
        tokens = programs.draws.next(batch.decode, "greedy")(logits, *settings).tokens
        found.append((tokens, logits))
    rows, vocabulary = len(PROMPTS), on.model.vocabulary
    return (
        np.array([replicas_agree(tokens)[:rows] for tokens, _ in found]),
        np.array([replicas_agree(logits)[:rows, 0, :vocabulary] for _, logits in found]),
        cache,
        batch.decode,
    )


def compiled(step: Any, *args: Any) -> Any:
    return step.lower(*args).compile(compiler_options=QUICK)


def rows_of(part: CachePart, dims: str, layout: Layout, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Keys or values of a layer: int8 [B, S, K, D] and the scale of every row [B, S, K], S in order."""
    shards = [CUBE.size[axis] for axis in layout.attn_s]
    value = replicas_agree(part.value).transpose([dims.index(d) for d in "BSKD"])
    scale = replicas_agree(part.scale).transpose(0, 2, 1)
    value, scale = (from_blocks(each, 1, shards)[:, :, : model.kv_heads] for each in (value, scale))
    return value, scale


def as_held(cache: Any, row: int, layout: Layout, model: Model) -> Callable[[np.ndarray], np.ndarray]:
    """`reference.cached`, called for the keys and the values of one layer after the other: checks that what
    the cache holds is the exact rows quantised, and gives what it stands for."""
    parts = [(part, dims) for pair in cache for part, dims in zip(pair, ("BKDS", "BKSD"), strict=True)]
    turn = iter(parts)

    def cached(exact: np.ndarray) -> np.ndarray:
        whole, scale = (each[row, : len(exact)] for each in rows_of(*next(turn), layout, model))
        assert whole.dtype == np.int8
        np.testing.assert_allclose(scale * 127, abs(exact).max(axis=-1), rtol=1e-4)
        # next to a tie float32 may round to the other side
        assert abs(exact / scale[..., None] - whole).max() < 0.5 + 2e-3
        return whole * scale[..., None].astype(np.float64)

    return cached


@pytest.mark.parametrize(("model", "pair"), COVERED)
def test_every_layout_equals_the_reference(model: Model, pair: tuple[str, str]):
    """Weights and cache in int8."""
    tokens, logits, cache, layout = run(engine(model, *pair, "int8"))
    parameters = stood_for(model)
    for row, ids in enumerate(PROMPTS):
        through = [*ids, *tokens[:-1, row].tolist()]
        with patch.object(reference, "cached", as_held(cache, row, layout, model)):
            expected = reference.logits(model, parameters, through)[len(ids) - 1 :]
        assert abs(logits[:, row] - expected).max() < TOLERANCE
        assert tokens[:, row].tolist() == expected.argmax(axis=-1).tolist()


def test_int8_weights_beside_a_cache_of_floats():
    model = MODELS["grouped, serial, biased"]
    tokens, logits, _, _ = run(engine(model, "wg-xyz/batch", "ws2d/heads", "f32"))
    parameters = stood_for(model)
    for row, ids in enumerate(PROMPTS):
        through = [*ids, *tokens[:-1, row].tolist()]
        expected = reference.logits(model, parameters, through)[len(ids) - 1 :]
        assert abs(logits[:, row] - expected).max() < TOLERANCE
        assert tokens[:, row].tolist() == expected.argmax(axis=-1).tolist()


def test_a_prompt_attends_to_its_keys_and_values_as_the_cache_holds_them():
    """Logits of every token of a prompt: what an int8 cache costs is in them."""
    model = MODELS["multi-query, parallel"]
    parameters = stood_for(model)
    expected = np.concatenate([reference.logits(model, parameters, ids) for ids in PROMPTS])
    off = [
        abs(np.concatenate(engine(model, "ws1d/heads", "ws1d/heads", kv).logits(PROMPTS)) - expected).max()
        for kv in ("f32", "int8")
    ]
    assert off[0] < TOLERANCE
    assert 1e-3 < off[1] < 0.1


# -- bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", ["f32", "bf16"])
@pytest.mark.parametrize("activations", ["f32", "bf16"])
@pytest.mark.parametrize(("model", "pair"), [each for each in COVERED if not each.marks][::3])
def test_as_many_bytes_move_as_priced(model: Model, pair: tuple[str, str], activations: str, reduce: str):
    priced = formats("int8").model_copy(update={"activations": activations, "reduce": reduce})
    roles = [parse_layout(layout, CUBE.axes) for layout in pair]
    sizes = Workload(prompt=13, output=1, batch=3, context=20)
    checks = list(verify(model, CUBE, [(roles[0], roles[1])], priced, sizes, compiled=False))
    assert [check.phase for check in checks] == ["prefill", "switch", "decode"]
    for check in checks:
        assert check.exact, (check.phase, check.predicted, check.counted)


def test_weights_are_gathered_as_int8():
    """Beside the scales, one byte for each number that a chip does not hold, four in float32."""
    model = MODELS["grouped, serial, biased"]
    roles = parse_layout("wg-xyz/heads", CUBE.axes)
    stored = plan_storage(model, CUBE, roles, roles)
    gathered = {}
    for weights in ("int8", "f32"):
        kinds = formats("f32").model_copy(update={"weights": weights})
        programs = Programs(model, CUBE, stored, kinds)
        layout = resolve(roles, stored, CUBE, 8, 16)
        check = check_prefill(programs, layout, layout, 8, 16, compiled=False)
        gathered[weights] = sum(
            sent for (kind, _), sent in check.counted.sent_bytes.items() if kind == "all-gather"
        )
    targets = Programs(model, CUBE, stored, formats("f32")).parameters()
    matrices = [t.size for name, t in targets.items() if t.dtype == np.int8 and name.startswith("layers.")]
    scales = [t.size for name, t in targets.items() if name.endswith("_scale") and name.startswith("layers.")]
    assert len(matrices) == len(scales) == 5 * model.layers
    saved = gathered["f32"] - gathered["int8"]
    numbers = sum(matrices) * 7 / 8  # a chip has an eighth of them
    assert 3 * numbers - 4 * sum(scales) <= saved < 3 * numbers
