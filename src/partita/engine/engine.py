"""The engine: a model on a mesh, one copy of its weights, prefill in one layout and decode in another.

Knows nothing about HTTP, files or scheduling; a checkpoint gives it tensors and, if it has one, a tokenizer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.protocol import Checkpoint
from partita.engine.devices import devices_for
from partita.engine.generation import Completion, Written, completions, run
from partita.engine.load import EngineRequest, Placement, placement_of, placement_on
from partita.engine.memory import Asked, AskedLogits, AskedStep, InOneLine, Memory, Sizes
from partita.engine.parameters import place
from partita.engine.requests import check_prompts, separate, whole_ids
from partita.engine.slots import Prompts, Slots
from partita.engine.steps import Programs
from partita.engine.stopping import Ending, Numbers, Piece
from partita.errors import InputError
from partita.planner.plan import Plan
from partita.planner.run_memory import StepShape
from partita.planner.saved import SavedPlan
from partita.program.options import RunOptions
from partita.sharding.layout import Layout, plan_storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import Roles
from partita.specs.formats import Formats
from partita.specs.sampling import Sampling

_BUCKET = 16
"""Prompt lengths and cache capacities are rounded up to multiples of this, so that few shapes compile."""


@dataclass(frozen=True)
class Batch:
    """Prompts side by side, padded, and the layouts for as many."""

    tokens: np.ndarray  # int32 [B, L]
    lengths: np.ndarray  # int32 [B]; padding sequences have one token
    count: int  # sequences that are not padding
    prefill: Layout
    decode: Layout


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs its model.

    devices: as many as the mesh has, by default the first that JAX knows. chunk: tokens of a prompt that are
    read in one step, at most; None for all. force: it runs whatever memory there is. first: what it is loaded
    for, where that is known; it must fit beside the weights before these are placed.
    """

    devices: Sequence[Any] | None = None
    run_options: RunOptions | None = None
    chunk: int | None = None
    force: bool = False
    first: Asked | AskedLogits | None = None


class Engine:
    """Runs a checkpoint split over a mesh.

    >>> from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
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
        options: EngineOptions = EngineOptions(),
        progress: Callable[[int, int], None] | None = None,
    ):
        """Places the weights once, where decode keeps them, for both phases; float32 unless formats are
        given. Raises InputError (field "memory") where there is too little of it."""
        if options.chunk is not None and options.chunk < 1:
            raise InputError("chunk", options.chunk, "1 or more tokens are accepted")
        self.chunk = options.chunk
        self.model, self.tokenizer, self.mesh = checkpoint.model, checkpoint.tokenizer, mesh
        self.eos_ids = checkpoint.eos_ids
        self.roles = {"prefill": prefill, "decode": decode}
        self.formats = formats or Formats(weights="f32", activations="f32", kv="f32")
        self.storage = plan_storage(self.model, mesh, decode, prefill)
        on = options.devices, options.run_options
        self.programs = Programs(self.model, mesh, self.storage, self.formats, *on)
        self.memory = Memory(self.programs, self.chunk, self.sizes, options.force)
        first = options.first
        if isinstance(first, AskedLogits):
            first = self._logits_step(1, first.width, first.kept_bytes)
        self.memory.check_load(checkpoint.quantised, first)
        with InOneLine():
            self.parameters = place(self.programs, checkpoint, progress)
        self.memory.placed()

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        *,
        plan: Plan | SavedPlan | str | None = None,
        mesh: str | Mesh | None = None,
        prefill: str | None = None,
        decode: str = "ws2d/batch",
        dtype: str = "auto",
        weights: str | None = None,
        kv: str | None = None,
        chunk: int | None = None,
        run_options: RunOptions | None = None,
        devices: int | None = None,
        force: bool = False,
    ) -> Engine:
        """An engine for MODEL, on a plan's mesh and layouts or on `mesh` in layouts `prefill` and `decode`.

        A layout is FFN/ATTENTION, such as "wg-xyz/heads"; prefill's is decode's unless given. `dtype`,
        `weights` and `kv` are as `number_formats` has them, `chunk` and `run_options` as `EngineOptions`.
        `devices` makes so many CPU devices where there is no accelerator. Weights, and later each request,
        are refused (InputError, field "memory") where they need more memory than is free, unless `force`.
        Raises InputError for wrong input.
        """
        if plan is not None and mesh is not None:
            raise InputError("mesh", mesh, "give mesh or plan, which has a mesh of its own")
        request = EngineRequest(
            dtype=dtype,
            weights=weights,
            kv=kv,
            chunk=chunk,
            run_options=run_options,
            devices=devices,
            force=force,
        )
        if plan is not None:
            placement = placement_of(plan)
        else:
            shape = Mesh("x", (devices or 1,)) if mesh is None else mesh
            placement = placement_on(shape, prefill or decode, decode)
        return cls.on(open_checkpoint(os.fspath(model)), placement, request)

    @classmethod
    def on(
        cls,
        checkpoint: Checkpoint,
        placement: Placement,
        request: EngineRequest,
        progress: Callable[[int, int], None] | None = None,
        first: Asked | None = None,
    ) -> Engine:
        """An engine for a checkpoint, placed and run as asked; one that is held in int8 runs in int8.

        first: as `EngineOptions` has it. Raises InputError as `load` does.
        """
        devices = devices_for(placement.mesh.chips, request.devices)
        return cls(
            checkpoint,
            placement.mesh,
            placement.prefill,
            placement.decode,
            formats=request.formats(devices[0].platform, placement, quantised=bool(checkpoint.quantised)),
            options=EngineOptions(
                devices, request.run_options, request.chunk_of(placement), request.force, first
            ),
            progress=progress,
        )

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

    def logits(self, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Float32 logits [tokens, vocabulary] of each prompt, in the prefill layout."""
        prompts = [whole_ids(ids) for ids in separate(prompts)]
        batch = self.batch(prompts)
        self.memory.check(self._logits_step(*batch.tokens.shape))
        with InOneLine():
            found = np.asarray(self.programs.logits(batch.prefill)(self.parameters, batch.tokens))
        return [found[row, : len(ids), : self.model.vocabulary] for row, ids in enumerate(prompts)]

    def _logits_step(self, rows: int, width: int, kept_bytes: int = 0) -> AskedStep:
        layout = resolve(self.roles["prefill"], self.storage, self.mesh, rows, width)
        return AskedStep(layout, StepShape(rows, width), kept_bytes=kept_bytes)

    # -- generation ---------------------------------------------------------------------------------------

    def read(
        self, prompts: Sequence[Sequence[int]], requests: Sequence[Sampling], samples: int
    ) -> tuple[Slots, Prompts]:
        """Prompts read to their end, and slots for so many samples of them.

        Raises InputError before anything runs for what the model does not take.
        """
        check_prompts(self.model, prompts)
        for ids, request in zip(prompts, requests, strict=True):
            check_prompts(self.model, [ids], request.max_tokens)
            request.check_tokens(self.model.vocabulary)
        asked = Asked(tuple(len(ids) for ids in prompts), tuple(requests), samples)
        self.memory.check(asked)
        sizes = self.sizes(asked, self.chunk)
        slots = Slots(self.programs, self.parameters, sizes.decode, sizes.count, sizes.capacity)
        read = slots.begin(prompts, sizes.prefill, sizes.rows, sizes.chunk)
        while not slots.advance(read):
            pass
        return slots, read

    def sizes(self, asked: Asked, most: int | None) -> Sizes:
        """The shapes that requests run in, with `most` tokens of a prompt read in one step."""
        longest, samples = max(asked.lengths), asked.samples
        width = self._bucket(longest)
        chunk = min(width, most or width)
        rows, count = self._rows(len(asked.lengths)), self._rows(samples)
        prefill = resolve(self.roles["prefill"], self.storage, self.mesh, rows, chunk)
        decode = resolve(self.roles["decode"], self.storage, self.mesh, count, 1)
        axes = [prefill.batch_axes, decode.batch_axes]
        if len(asked.lengths) == samples:  # they move from one split of the batch to the other
            axes = [union(*axes)] * 2
        rows, count = (
            ceil_to(n, product(self.mesh.size, split)) for n, split in zip((rows, count), axes, strict=True)
        )
        whole = product(
            self.mesh.size, union(union(prefill.query_axes, prefill.new_axes), self.storage.s_axes)
        )
        chunk = ceil_to(chunk, whole)
        ends = [n + request.max_tokens for n, request in zip(asked.lengths, asked.requests, strict=True)]
        capacity = ceil_to(self._bucket(max(*ends, ceil_to(longest, chunk))), whole)
        return Sizes(prefill, decode, rows, chunk, longest, count, capacity)

    def _bucket(self, tokens: int) -> int:
        """So many tokens or up to an eighth more, so that few shapes compile; as long as the model takes."""
        found = ceil_to(tokens, max(_BUCKET, (1 << (tokens - 1).bit_length()) // 16))
        longest = self.model.max_context
        return found if longest is None else max(tokens, min(found, longest))

    def _rows(self, sequences: int) -> int:
        """So many sequences or more: a power of two up to 8, then a multiple of 8."""
        return 1 << (sequences - 1).bit_length() if sequences <= 8 else ceil_to(sequences, 8)

    def tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """The token ids of a prompt. Raises InputError for a text where there is no tokenizer."""
        if not isinstance(prompt, str):
            return whole_ids(prompt)
        if self.tokenizer is None:
            raise InputError("prompt", prompt, "this model has no tokenizer; give token ids")
        return self.tokenizer.encode(prompt)

    def pieces(self, prompt: str | Sequence[int], sampling: Sampling) -> Iterator[Piece]:
        """The continuation of one prompt, a piece a token, until it ends; the first of its samples."""
        one = sampling.model_copy(update={"n": 1})
        return (written.piece for written in self.written([self.tokens(prompt)], [one]))

    def stream(self, prompt: str | Sequence[int], **sampling: Any) -> Iterator[str]:
        """The continuation of a prompt, text or token ids, as pieces of text while it is decoded.

        sampling: fields of `Sampling`, such as max_tokens and temperature. Raises InputError for one that is
        wrong.
        """
        if unknown := sampling.keys() - Sampling.model_fields.keys():
            name = min(unknown)
            raise InputError(name, sampling[name], f"fields are {', '.join(Sampling.model_fields)}")
        pieces = self.pieces(prompt, Sampling(**sampling))
        return (piece.text for piece in pieces if piece.text)

    def complete(
        self, prompts: Sequence[str | Sequence[int]], sampling: Sampling | Sequence[Sampling]
    ) -> list[list[Completion]]:
        """All samples of every prompt, each prompt with settings of its own or all with the same."""
        prompts = separate(prompts)
        requests = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if not all(isinstance(request, Sampling) for request in requests):
            raise InputError(
                "sampling", repr(sampling)[:60], "a Sampling, or one for each prompt, is accepted"
            )
        if len(requests) != len(prompts):
            raise InputError(
                "sampling", len(requests), f"settings for each of {len(prompts)} prompts are needed"
            )
        return completions(self.written([self.tokens(prompt) for prompt in prompts], requests), requests)

    def written(self, prompts: Sequence[Sequence[int]], requests: Sequence[Sampling]) -> Iterator[Written]:
        """The pieces of every sample of every prompt as they are drawn, each prompt with settings of its own.

        Raises InputError before anything is run for a prompt or setting that the model does not take.
        """
        pieces = run(requests, partial(self.read, prompts, requests), self._ending)
        while True:
            with InOneLine():
                one = next(pieces, None)
            if one is None:
                return
            yield one

    def _ending(self, request: Sampling) -> Ending:
        words = Numbers() if self.tokenizer is None else self.tokenizer.stream()
        return Ending(request, words, self.eos_ids)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: frozenset[int] = frozenset()
    ) -> list[list[int]]:
        """Greedy tokens of each prompt, up to `max_tokens`, each ending before a token of `stop` only."""
        sampling = Sampling(max_tokens=max_tokens, stop_token_ids=stop, ignore_eos=True)
        return [samples[0].tokens for samples in self.complete(prompts, sampling)]
