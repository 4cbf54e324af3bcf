"""The engine: a model on a mesh, one copy of its weights, prefill in one layout and decode in another.

Knows nothing about HTTP, files or scheduling; a checkpoint gives it tensors and, if it has one, a tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from partita.checkpoints.protocol import Checkpoint
from partita.engine.parameters import place
from partita.engine.programs import Programs
from partita.engine.requests import check_prompts
from partita.errors import InputError
from partita.sharding.layout import Layout, Storage, ceil_to, plan_storage, product, resolve, union
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles
from partita.specs.formats import Formats

_BUCKET = 16
"""Prompt lengths and cache capacities are rounded up to multiples of this, so that few shapes compile."""


@dataclass(frozen=True)
class Piece:
    """What one token adds to a text; the last piece has no token, and says why the text ends."""

    token: int | None
    text: str
    finish: Literal["length", "stop"] | None = None


@dataclass(frozen=True)
class Batch:
    """Prompts side by side, padded, and the layouts for as many."""

    tokens: np.ndarray  # int32 [B, L]
    lengths: np.ndarray  # int32 [B]; padding sequences have one token
    count: int  # sequences that are not padding
    prefill: Layout
    decode: Layout


class Engine:
    """Runs a checkpoint split over a mesh.

    >>> from partita.checkpoints.protocol import MemoryCheckpoint
    >>> from partita.checkpoints.random import random_parameters
    >>> from partita.sharding import Mesh, parse_layout
    >>> from partita.specs import Model
    >>> sizes = dict(layers=2, d_model=16, d_ff=32, heads=4, kv_heads=2, head_dim=4, vocabulary=64)
    >>> model = Model(name="tiny", **sizes)
    >>> checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=0))
    >>> engine = Engine(checkpoint, Mesh("x", (1,)), *[parse_layout("ws2d/heads", "x")] * 2)
    >>> engine.logits([[1, 2, 3], [4, 5]])[1].shape
    (2, 64)
    >>> len(engine.generate([[1, 2, 3], [4, 5]], max_tokens=4)[0])
    4
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        mesh: Mesh,
        prefill: Roles,
        decode: Roles,
        *,
        formats: Formats | None = None,
        storage: Storage | None = None,
        devices: Sequence[Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ):
        """Places the weights once, where decode keeps them (or as `storage` says), for both phases."""
        self.model, self.tokenizer, self.mesh = checkpoint.model, checkpoint.tokenizer, mesh
        self.roles = {"prefill": prefill, "decode": decode}
        self.formats = formats or Formats(weights="f32", activations="f32", kv="f32")
        self.storage = storage or plan_storage(self.model, mesh, decode, prefill)
        self.programs = Programs(self.model, mesh, self.storage, self.formats, devices)
        self.parameters = place(self.programs, checkpoint, progress)

    @classmethod
    def load(cls, model: str, **options) -> Engine:
        """An engine for MODEL with `plan=` or `mesh=`, `prefill=`, `decode=`; see `engine.load.load`."""
        from partita.engine.load import load

        return load(model, **options)

    def batch(self, prompts: Sequence[Sequence[int]]) -> Batch:
        """Pads prompts to one shape. Raises InputError for an empty or impossible prompt."""
        check_prompts(self.model, prompts)
        longest = max(len(ids) for ids in prompts)
        prefill = resolve(self.roles["prefill"], self.storage, self.mesh, len(prompts), longest)
        decode = resolve(self.roles["decode"], self.storage, self.mesh, len(prompts), 1)
        # from one phase to the other the batch is for a moment split over the axes of both
        both = union(prefill.batch_axes, decode.batch_axes)
        rows = ceil_to(len(prompts), product(self.mesh.size, both))
        positions = union(prefill.query_axes, self.storage.s_axes)  # and the cache over these
        width = ceil_to(longest, math.lcm(_BUCKET, product(self.mesh.size, positions)))
        tokens, lengths = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        return Batch(tokens, lengths, len(prompts), prefill, decode)

    def capacity(self, tokens: int) -> int:
        """Places of a cache for so many tokens: a multiple of what it is dealt out over."""
        return ceil_to(tokens, math.lcm(_BUCKET, product(self.mesh.size, self.storage.s_axes)))

    def logits(self, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Float32 logits [tokens, vocabulary] of each prompt, in the prefill layout."""
        batch = self.batch(prompts)
        found = np.asarray(self.programs.logits(batch.prefill)(self.parameters, batch.tokens))
        return [found[row, : len(ids), : self.model.vocabulary] for row, ids in enumerate(prompts)]

    def steps(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Iterator[np.ndarray]:
        """The next token [prompts] of every prompt, greedily, `max_tokens` times; the first from prefill."""
        if max_tokens < 1:
            raise InputError("max_tokens", max_tokens, "1 or more tokens are accepted")
        check_prompts(self.model, prompts, max_tokens)
        batch = self.batch(prompts)
        longest = int(batch.lengths.max()) + max_tokens
        tokens, kv = self.programs.prefill(batch.prefill)(self.parameters, batch.tokens, batch.lengths)
        yield np.asarray(tokens)[: batch.count]
        if max_tokens == 1:
            return
        capacity = self.capacity(max(longest, batch.tokens.shape[1]))
        cache = self.programs.switch(batch.prefill, batch.decode, capacity)(kv, batch.lengths)
        del kv
        decode = self.programs.decode(batch.decode)
        positions = jnp.asarray(batch.lengths)
        for _ in range(max_tokens - 1):
            tokens, positions, cache = decode(self.parameters, cache, tokens, positions)
            yield np.asarray(tokens)[: batch.count]

    def pieces(self, ids: Sequence[int], max_tokens: int) -> Iterator[Piece]:
        """Greedy continuation of one prompt, a piece a token, until a token that ends the text."""
        text = self.tokenizer.stream() if self.tokenizer else None
        ends = self.tokenizer.eos_ids if self.tokenizer else frozenset()
        finish: Literal["length", "stop"] = "length"
        for step in self.steps([ids], max_tokens):
            token = int(step[0])
            if token in ends:
                finish = "stop"
                break
            yield Piece(token, text.push(token) if text else f"{token} ")
        yield Piece(None, text.end() if text else "", finish)

    def stream(
        self, prompt: str | Sequence[int], max_tokens: int = 64, temperature: float = 0.0
    ) -> Iterator[str]:
        """The continuation of a prompt, text or token ids, as pieces of text while it is decoded.

        Raises InputError for a temperature other than 0, and for text where there is no tokenizer.
        """
        if temperature != 0:
            raise InputError("temperature", temperature, "only 0 (greedy) is accepted so far")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError("prompt", prompt, "this model has no tokenizer; give token ids")
            prompt = self.tokenizer.encode(prompt)
        return (piece.text for piece in self.pieces(prompt, max_tokens))

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: frozenset[int] = frozenset()
    ) -> list[list[int]]:
        """Greedy tokens of each prompt, up to `max_tokens`, each ending before a token of `stop`."""
        found: list[list[int]] = [[] for _ in prompts]
        open_rows = set(range(len(prompts)))
        for tokens in self.steps(prompts, max_tokens):
            for row in sorted(open_rows):
                if int(tokens[row]) in stop:
                    open_rows.discard(row)
                else:
                    found[row].append(int(tokens[row]))
            if not open_rows:
                break
        return found
