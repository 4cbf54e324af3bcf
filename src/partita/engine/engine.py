"""The engine: a model on a mesh, one copy of its weights, prefill in one layout and decode in another.

Knows nothing about HTTP, files or scheduling; a checkpoint gives it tensors and, if it has one, a tokenizer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.protocol import Checkpoint
from partita.engine.ahead import Compiling, closed_jobs, jobs_of
from partita.engine.compile_cache import keep_compiled
from partita.engine.devices import devices_for
from partita.engine.drafting import WIDTH, Draft, Drafter, Pace, check_draft
from partita.engine.generation import Completion, Written, completions, run
from partita.engine.load import EngineRequest, Placement, placement_of, placement_on
from partita.engine.memory import Asked, AskedLogits, AskedStep, InOneLine, Memory
from partita.engine.not_finite import first_not_finite
from partita.engine.parameters import place
from partita.engine.requests import check_prompts, fitted, separate, whole_ids
from partita.engine.shapes import BUCKET, Capacity, Reading, StepShapes, StepSizes
from partita.engine.slots import Prompts, Slots
from partita.engine.smaller import PYTHON, Words
from partita.engine.steps import Programs
from partita.engine.stopping import Ending, Numbers, Piece
from partita.errors import InputError, NotFiniteError
from partita.planner.run_memory import StepShape
from partita.program.options import RunOptions
from partita.sharding.layout import Layout, plan_storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import Roles
from partita.specs.arguments import of_type, whole_number
from partita.specs.catalogue import chip
from partita.specs.formats import Formats
from partita.specs.hardware import Chip
from partita.specs.sampling import Sampling

if TYPE_CHECKING:
    from partita.planner.plan import Plan
    from partita.planner.saved import SavedPlan

_STEP_TOKENS = {True: 16, False: 256}
"""What a step costs beside its tokens, in tokens, on CPU devices and on others: it reads all weights, in a
time in which a CPU multiplies some ten tokens and an accelerator some hundred."""


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
    read in one step, at most; None for as many as are fast. capacity: what one set of compiled steps is for.
    draft: whether a step verifies drafted tokens (`drafting.Draft`). chip: its peaks price such a step until
    some have been timed; by default those of the catalogue's CPU. force: it runs whatever memory there is.
    first: what it is loaded for, where that is known; it must fit beside the weights before these are placed,
    and the steps it needs are compiled meanwhile. words: how the caller says what could be less.
    """

    devices: Sequence[Any] | None = None
    run_options: RunOptions | None = None
    chunk: int | None = None
    capacity: Capacity = field(default_factory=Capacity)
    draft: Draft = "auto"
    chip: Chip | None = None
    force: bool = False
    first: Asked | AskedLogits | None = None
    words: Words = field(default_factory=lambda: PYTHON)


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
        self.chunk = None if options.chunk is None else whole_number("chunk", options.chunk)
        self.draft: Draft = check_draft(options.draft)
        self.chip = options.chip
        self.model, self.mesh = checkpoint.model, mesh
        self.tokenizer_error = checkpoint.tokenizer_error
        """Why there is no `tokenizer`, where the checkpoint's is not understood: text is token ids then."""
        self.tokenizer = None if self.tokenizer_error else checkpoint.tokenizer
        self.roles = {"prefill": prefill, "decode": decode}
        self.formats = formats or Formats(weights="f32", activations="f32", kv="f32")
        if self.draft == "auto" and self.formats.activations != "f32":
            self.draft = "off"  # elsewhere the last bits of logits, which differ by step, decide too often
        self.storage = plan_storage(self.model, mesh, decode, prefill)
        on = options.devices, options.run_options
        self.programs = Programs(self.model, mesh, self.storage, self.formats, *on)
        self.programs.width = 1 if self.draft == "off" else WIDTH
        self.shapes = StepShapes(
            self.roles,
            self.storage,
            mesh,
            self.model.max_context,
            options.capacity,
            options.chunk,
            step_tokens=_STEP_TOKENS[self.programs.on_cpu],
        )
        self.memory = Memory(self.programs, self.chunk, self.sizes, options.force, options.words)
        first = options.first
        if isinstance(first, AskedLogits):
            step = self._logits_step(1, first.width)
            first = replace(step, kept_bytes=first.kept_bytes, kept_tokens=first.kept_tokens)
        self.memory.check_load(checkpoint.quantised, first)
        jobs = []
        if isinstance(first, Asked):
            jobs = jobs_of(self.programs, self.shapes, first)
        self._compiling = Compiling(jobs)
        try:
            self.eos_ids = checkpoint.eos_ids  # tries the chat template, while steps are compiled
            with InOneLine():
                self.parameters = place(self.programs, checkpoint, progress)
        except BaseException:
            self._compiling.give_up()
            raise
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
        capacity: Capacity | None = None,
        draft: Draft = "auto",
        force: bool = False,
    ) -> Engine:
        """An engine for MODEL, on a plan's mesh and layouts or on `mesh` in layouts `prefill` and `decode`.

        A layout is FFN/ATTENTION, such as "wg-xyz/heads"; prefill's is decode's unless given. `dtype`,
        `weights` and `kv` are as `number_formats` has them, `chunk`, `run_options`, `capacity` and `draft`
        as `EngineOptions`. `devices` makes so many CPU devices where there is no accelerator. Weights, and
        later each request, are refused (InputError, field "memory") where they need more memory than is free,
        unless `force`. Raises InputError for wrong input.
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
            capacity=capacity,
            draft=draft,
            force=force,
        )
        if plan is not None:
            placement = placement_of(plan)
        else:
            shape = Mesh("x", (request.devices or 1,)) if mesh is None else mesh
            placement = placement_on(shape, prefill or decode, decode)
        of_type("model", model, (str, os.PathLike), "the path or the name of a model")
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
        keep_compiled()
        devices, planned = devices_for(placement.mesh.chips, request.devices), placement.plan
        return cls(
            checkpoint,
            placement.mesh,
            placement.prefill,
            placement.decode,
            formats=request.formats(devices[0].platform, placement, quantised=bool(checkpoint.quantised)),
            options=EngineOptions(
                devices,
                request.run_options,
                request.chunk_of(placement),
                request.capacity or Capacity(),
                request.draft,
                planned and planned.setting.cluster.chip,
                request.force,
                first,
                request.words,
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
        width = ceil_to(longest, math.lcm(BUCKET, product(self.mesh.size, positions)))
        tokens, lengths = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)], tokens[row, len(ids) :], lengths[row] = ids, ids[-1], len(ids)
        return Batch(tokens, lengths, len(prompts), prefill, decode)

    def logits(self, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Float32 logits [tokens, vocabulary] of each prompt, in the prefill layout.

        Raises NotFiniteError where one of them is infinite or no number.
        """
        prompts = [whole_ids(ids) for ids in separate(prompts)]
        batch = self.batch(prompts)
        self.memory.check(self._logits_step(*batch.tokens.shape))
        with InOneLine():
            run = self.programs.logits(batch.prefill)
            found = np.asarray(run(self.parameters, batch.tokens, batch.lengths))
        logits = [found[row, : len(ids), : self.model.vocabulary] for row, ids in enumerate(prompts)]
        for number, each in enumerate(logits):
            if (bad := np.flatnonzero(~np.isfinite(each).all(axis=1))).size:
                raise self.not_finite(prompts, number, upto=bad[0] + 1)
        return logits

    def warm(self) -> None:
        """Compiles all that requests within the capacity will run but for drafts, so that none of them waits
        for it. Raises what compiling raises."""
        self._compiling.wait(quietly=True)
        Compiling(closed_jobs(self.programs, self.shapes)).wait()

    def _logits_step(self, rows: int, width: int) -> AskedStep:
        layout = resolve(self.roles["prefill"], self.storage, self.mesh, rows, width)
        return AskedStep(layout, StepShape(rows, width))

    # -- generation ---------------------------------------------------------------------------------------

    def read(
        self, prompts: Sequence[Sequence[int]], requests: Sequence[Sampling], samples: int
    ) -> tuple[Slots, Iterator[Prompts]]:
        """Slots for so many samples, and the prompts, read to their end one after another or side by side.

        Raises InputError before anything runs for what the model does not take.
        """
        check_prompts(self.model, prompts)
        for ids, request in zip(prompts, requests, strict=True):
            check_prompts(self.model, [ids], request.max_tokens)
            request.check_tokens(self.model.vocabulary)
        asked = Asked(tuple(len(ids) for ids in prompts), tuple(requests), samples)
        self.memory.check(asked)
        self._compiling.wait(quietly=True)
        decoding, readings = self.shapes.choose(asked.lengths, asked.ends, samples)
        slots = Slots(self.programs, self.parameters, decoding)
        return slots, (self._read(slots, reading, prompts) for reading in readings)

    def _read(self, slots: Slots, reading: Reading, prompts: Sequence[Sequence[int]]) -> Prompts:
        ids = [prompts[number] for number in reading.prompts]
        widths = self.shapes.widths(reading, max(map(len, ids)))
        read = slots.begin(ids, reading.layout, reading.rows, widths, reading.room)
        while not slots.advance(read):
            pass
        return read

    def sizes(self, asked: Asked, most: int | None) -> StepSizes:
        """The shapes that requests run in, with `most` tokens of a prompt read in one step."""
        return replace(self.shapes, chunk=most).sizes(asked.lengths, asked.ends, asked.samples)

    def tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """The token ids of a prompt. Raises InputError for a text where there is no tokenizer, or none that
        is understood."""
        if not isinstance(prompt, str):
            return whole_ids(prompt)
        if self.tokenizer_error is not None:
            raise self.tokenizer_error
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
        """All samples of every prompt, each prompt with settings of its own or all with the same.

        Raises InputError for wrong input, and NotFiniteError where the logits of a prompt are infinite or no
        numbers; it says which prompt's, and the others' texts are not given.
        """
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

        Raises InputError before anything is run for a prompt or setting that the model does not take, and
        NotFiniteError where a prompt's logits are infinite or no numbers.
        """
        sized = zip(prompts, requests, strict=True)
        requests = [fitted(self.model, len(ids), request) for ids, request in sized]
        read = partial(self.read, prompts, requests)

        def ending(number: int) -> Ending:
            return self.ending(prompts[number], requests[number])

        pieces = run(requests, read, ending, partial(self.not_finite, prompts), self._drafter)
        while True:
            with InOneLine():
                one = next(pieces, None)
            if one is None:
                return
            yield one

    def _drafter(self, slots: Slots) -> Drafter:
        """What drafts for these slots."""
        if self.draft != "auto":
            return Drafter(self.draft, slots.width, Pace(1.0))
        from partita.planner.step_ratio import step_ratio  # the planner is slow to import

        shape = StepShape(slots.count, slots.width, slots.capacity)
        on = slots.layout, self.mesh, self.formats, self.chip or chip("xeon-8480")
        return Drafter(self.draft, slots.width, Pace(step_ratio(self.model, *on, shape)))

    def not_finite(
        self,
        prompts: Sequence[Sequence[int]],
        number: int,
        written: Sequence[int] = (),
        upto: int | None = None,
    ) -> NotFiniteError:
        """What is wrong with one of the prompts, up to a token, and what was written after it: its logits are
        not finite."""
        prompt, roles = prompts[number], self.roles["prefill"]
        ids = [*prompt[:upto], *written]
        where = first_not_finite(self.programs, self.parameters, roles, ids, len(prompt))
        what = "the activations" if where else "the logits over the temperature"
        of = f"prompt {number + 1} of {len(prompts)}: " if len(prompts) > 1 else ""
        return NotFiniteError(self.model.name, f"{of}{what} became infinite {where or ''}".rstrip())

    def ending(self, prompt: Sequence[int], request: Sampling) -> Ending:
        """Where the text of a sample of a request is written to, which goes on from its prompt's."""
        show = not request.skip_special_tokens
        words = Numbers() if self.tokenizer is None else self.tokenizer.stream(show, prompt)
        return Ending(request, words, self.eos_ids)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: frozenset[int] = frozenset()
    ) -> list[list[int]]:
        """Greedy tokens of each prompt, up to `max_tokens`, each ending before a token of `stop` only."""
        sampling = Sampling(max_tokens=max_tokens, stop_token_ids=stop, ignore_eos=True)
        return [samples[0].tokens for samples in self.complete(prompts, sampling)]
