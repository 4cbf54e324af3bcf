"""A real model on the mesh: SmolLM2 gives the tokens that transformers and torch gave for the same file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import some

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.open import packaged_gguf
from partita.checkpoints.protocol import StoredCheckpoint
from partita.engine.engine import Engine, EngineOptions
from partita.engine.shapes import Capacity
from partita.sharding import ATTENTION_NAMES, FFN_NAMES, Mesh, parse_layout


@pytest.fixture(scope="module")
def checkpoint() -> StoredCheckpoint:
    return open_gguf(packaged_gguf("smollm2-135m"))


@pytest.fixture(scope="module")
def oracle() -> list[dict[str, Any]]:
    """Prompts and what follows each, greedily; `scripts/make_oracle_fixture.py` wrote it."""
    path = Path(__file__).parents[1] / "fixtures" / "smollm2_greedy.json"
    return json.loads(path.read_text(encoding="utf-8"))["prompts"]


def generate(
    checkpoint: StoredCheckpoint, shape: tuple[int, ...], prefill: str, decode: str, prompts: list, count: int
) -> list[list[int]]:
    mesh = Mesh.of(shape)
    roles = [parse_layout(layout, mesh.axes) for layout in (prefill, decode)]
    # shapes of its own: steps that are compiled this quickly run slowly on more than is asked
    options = EngineOptions(capacity=Capacity(1, 1), draft="off")
    return Engine(checkpoint, mesh, roles[0], roles[1], options=options).generate(prompts, count)


@pytest.mark.parametrize("count", some(1, [12, 64]))
def test_gathered_prefill_then_stationary_decode_on_eight(
    checkpoint: StoredCheckpoint, oracle: list[dict], count: int
):
    prompts = [entry["prompt_ids"] for entry in oracle]
    found = generate(checkpoint, (2, 2, 2), "wg-xyz/heads", "ws2d/batch", prompts, count)
    for entry, tokens in zip(oracle, found, strict=True):
        length = min(count, len(entry["generated_ids"]))
        assert tokens[:length] == entry["generated_ids"][:length], entry["prompt"]
    assert checkpoint.tokenizer is not None
    assert (oracle[0]["prompt"], len(oracle[0]["generated_ids"])) == ("Once upon a time", 64)
    text = checkpoint.tokenizer.decode(found[0])
    assert oracle[0]["text"].startswith(text)
    assert len(text) > 4 * count / 2


@pytest.mark.parametrize(
    ("shape", "prefill", "decode"),
    some(1, [((1,), "ws2d/heads", "ws2d/heads"), ((1, 2, 4), "ws1d/heads", "wg-xy/x=heads,y=batch,z=heads")]),
    ids=str,
)
def test_one_device_and_another_layout(
    checkpoint: StoredCheckpoint, oracle: list[dict], shape: tuple[int, ...], prefill: str, decode: str
):
    (found,) = generate(checkpoint, shape, prefill, decode, [oracle[0]["prompt_ids"]], 16)
    assert found == oracle[0]["generated_ids"][:16]


@pytest.mark.full
@pytest.mark.parametrize("layout", [f"{f}/{a}" for f, a in itertools.product(FFN_NAMES, ATTENTION_NAMES)])
def test_every_named_layout(checkpoint: StoredCheckpoint, oracle: list[dict], layout: str):
    prompts = [entry["prompt_ids"] for entry in oracle]
    found = generate(checkpoint, (2, 2, 2), layout, layout, prompts, 64)
    for entry, tokens in zip(oracle, found, strict=True):
        assert tokens[: len(entry["generated_ids"])] == entry["generated_ids"], entry["prompt"]
