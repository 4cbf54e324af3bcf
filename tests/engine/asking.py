"""A tiny model with a vocabulary of 64 short texts, and random requests of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.checkpoints.tokenizer import Tokenizer
from partita.engine.engine import Engine
from partita.sharding import Mesh, parse_layout
from partita.specs import Model
from partita.specs.sampling import Sampling

MODEL = Model(
    name="asked",
    layers=2,
    d_model=16,
    d_ff=32,
    heads=4,
    kv_heads=2,
    head_dim=4,
    vocabulary=64,
)
EOS = 0
_TEXTS = ["<eos>", *"abcdef", "ab", "ba", "abc", "ccc", "\u0120", "\u010a", "\u00c3", "\u00a9"]
"""Among them a space, a line's end, and the two bytes of é, as byte-level vocabularies write them."""


def tokenizer() -> Tokenizer:
    texts = _TEXTS + [f"{chr(97 + i % 26)}{i}" for i in range(MODEL.vocabulary - len(_TEXTS))]
    backend = Backend(models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token="<eos>"))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, texts, special=frozenset({EOS}), named_ends={EOS: "the test's"})


def engine(layout: str = "ws1d/heads", mesh: Mesh | None = None, **options: Any) -> Engine:
    """The model, its logits far enough apart that layouts agree on tokens."""
    mesh = mesh or Mesh("x", (1,))
    parameters = random_parameters(MODEL, seed=5)
    roles = parse_layout(layout, mesh.axes)
    return Engine(MemoryCheckpoint(MODEL, parameters, tokenizer()), mesh, roles, roles, **options)


def request(random: np.random.Generator, most: str, **fixed: Any) -> Sampling:
    """Settings that need no more than a kind of draw, each set about half of the time."""

    def sometimes(choose: Any) -> bool:
        return bool(random.random() < 0.5 and choose)

    found: dict[str, Any] = {"max_tokens": int(random.integers(1, 13)), "seed": int(random.integers(2**62))}
    drawn = most != "greedy"
    if sometimes(drawn):
        found["temperature"] = float(random.choice([1e-6, 0.01, 0.5, 1, 2.5, 100]))
    if sometimes(drawn):
        found["top_k"] = int(random.choice([-1, 1, 2, 10, 63, 64, 128]))
    if sometimes(drawn):
        found["min_p"] = float(random.choice([0, 1e-4, 0.3, 1]))
    if sometimes(most in ("wide", "full")):
        found["top_p"] = float(random.choice([1e-6, 0.1, 0.5, 0.9, 0.999, 1]))
    if sometimes(most == "full"):
        found["top_k"] = int(random.choice([1, 129, 10**9]))
    if sometimes(most == "full"):
        found["repetition_penalty"] = float(random.choice([0.01, 0.5, 1.2, 100]))
    if sometimes(most == "full"):
        found["presence_penalty"] = float(random.uniform(-2, 2))
        found["frequency_penalty"] = float(random.choice([-2, 0, 0.5, 2]))
    if sometimes(most == "full"):
        chosen = random.integers(0, MODEL.vocabulary, int(random.integers(0, 9)))
        found["logit_bias"] = {int(token): float(random.uniform(-100, 100)) for token in chosen}
    if sometimes(most == "full"):
        found["logprobs"] = int(random.integers(0, 21))
    if sometimes(True):
        texts = ["a", "b", "ab", "abab", "cc", " ", "\n", "é", "\ufffd", "1", "c", "z9"]
        found["stop"] = [str(text) for text in random.choice(texts, int(random.integers(0, 4)))]
    if sometimes(True):
        found["stop_token_ids"] = random.integers(0, MODEL.vocabulary, int(random.integers(0, 6))).tolist()
    if sometimes(True):
        found["ignore_eos"] = bool(random.random() < 0.5)
    return Sampling(**{**found, **fixed})


def prompt(random: np.random.Generator, tokens: int | None = None) -> list[int]:
    """So many tokens, or up to 16."""
    return random.integers(0, MODEL.vocabulary, tokens or int(random.integers(1, 17))).tolist()
