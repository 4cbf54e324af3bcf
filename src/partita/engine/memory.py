"""What a run takes of the memory that there is, before it takes it; and the refusal that says so in one line.

The bytes are those of the cost model (`Account`), for the shapes that the engine is about to run, and what
the host needs beside: copies while weights are placed, compiled programs, how often penalised slots wrote
each token. CPU devices share the machine's memory, so there the needs of all devices and of the host add up;
an accelerator has memory of its own. Takes no memory itself, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax

from partita.engine import free_memory
from partita.engine.cpu import BLOCK_FLOATS
from partita.engine.shapes import StepSizes
from partita.engine.smaller import PYTHON, Words, smallest_change
from partita.engine.steps import Programs
from partita.errors import InputError, out_of_memory
from partita.planner.infeasible import memory_text
from partita.planner.run_memory import Account, Caches, Held, Steps, StepShape, account
from partita.program.sampling import KINDS, Kind, needs
from partita.sharding.layout import Layout
from partita.sharding.padding import product
from partita.specs.formats import Formats
from partita.specs.parameters import Parameter, all_parameters
from partita.specs.sampling import Sampling
from partita.specs.units import format_bytes

Parts = Mapping[str, int]
"""Bytes by what they are for."""


@dataclass(frozen=True)
class Moment:
    """What is held at once: by each device, and by the host for all of them."""

    device: Parts
    host: Parts


@dataclass(frozen=True)
class Asked:
    """What of some requests decides the memory that they take: tokens of each prompt, and its settings."""

    lengths: tuple[int, ...]
    requests: tuple[Sampling, ...]
    slots: int = 0
    """Slots for them, where there are more than one for each sample."""

    @property
    def samples(self) -> int:
        return max(self.slots, sum(request.n for request in self.requests))

    @property
    def ends(self) -> list[int]:
        """Tokens of each prompt with its output."""
        return [n + request.max_tokens for n, request in zip(self.lengths, self.requests, strict=True)]

    @property
    def kind(self) -> Kind:
        return KINDS[max(KINDS.index(needs(request)) for request in self.requests)]

    fields = ("n", "max_tokens", "batch")

    @property
    def read_at_once(self) -> int:
        return max(self.lengths)

    def at_most(self, field: str, most: int) -> Asked:
        """The same with at most so many of `n` or `max_tokens` each, or so many prompts, the `batch`."""
        if field == "batch":
            return Asked(self.lengths[:most], self.requests[:most])
        less = [{field: min(getattr(request, field), most)} for request in self.requests]
        changed = (request.model_copy(update=one) for request, one in zip(self.requests, less, strict=True))
        return Asked(self.lengths, tuple(changed))

    def most(self, field: str) -> int:
        if field == "batch":
            return len(self.lengths)
        return max(getattr(request, field) for request in self.requests)


@dataclass(frozen=True)
class AskedStep:
    """One step alone, the draw of its tokens, and what the caller keeps on the host beside."""

    layout: Layout
    shape: StepShape
    kind: Kind | None = None
    """How tokens are drawn; None: not at all, and the logits of every token come to the host."""
    kept_bytes: int = 0
    kept_tokens: int = 0
    """Tokens whose logits the caller keeps on the host, those of other steps too."""

    read_at_once = None

    @property
    def fields(self) -> tuple[str, ...]:
        """A text whose logits are kept is read in steps of one prompt, and cannot be less than a step."""
        if self.kept_tokens:
            return ("tokens",)
        return ("batch", "prompt" if self.shape.context is None else "context")

    def at_most(self, field: str, most: int) -> AskedStep:
        """The same for at most so many sequences, tokens of each, or `tokens` of a text."""
        shape = self.shape
        if field == "tokens":
            # a token that begins each prompt is no token of the text
            width = min(int(shape.queries), most + 1)
            tokens = most + -(-most // max(1, width - 1))
            return replace(self, shape=replace(shape, queries=width), kept_tokens=tokens)
        name = {"batch": "batch", "prompt": "queries", "context": "context"}[field]
        return replace(self, shape=replace(shape, **{name: most}))

    def most(self, field: str) -> int:
        shape = self.shape
        found = {
            "batch": shape.batch,
            "prompt": shape.queries,
            "context": shape.context,
            "tokens": self.kept_tokens,
        }
        return int(found[field] or 0)


@dataclass(frozen=True)
class AskedLogits:
    """Logits of every token of one prompt of `width` tokens at a time, and what is kept of them: those of
    `kept_tokens` in all, and bytes beside."""

    width: int
    kept_tokens: int = 0
    kept_bytes: int = 0


SizesOf = Callable[[Asked, int | None], StepSizes]
"""Gives the shapes that requests run in where so many tokens at most are read in one step."""


class Memory:
    """Compares what an engine is about to take with what there is.

    force: it goes on whatever there is. words: how the caller says what could be less.
    """

    def __init__(
        self,
        programs: Programs,
        chunk: int | None = None,
        sizes_of: SizesOf | None = None,
        force: bool = False,
        words: Words = PYTHON,
    ):
        self._programs, self._chunk, self._sizes_of = programs, chunk, sizes_of
        self._force, self._words = force, words
        mine = jax.process_index()
        self._devices = [d for d in programs.device_mesh.devices.flat if d.process_index == mine]
        self._placed = 0  # bytes of weights on each device, once they are there

    # -- checks -------------------------------------------------------------------------------------------

    def check_load(self, quantised: Collection[str] | None, asked: Asked | AskedStep | None = None) -> None:
        """Raises InputError (field "memory") where weights, and what is asked of them first, do not fit.

        quantised: names of the parameters that the checkpoint holds in int8; None for weights that are made
        where they stay, and not read.
        """
        self._check(asked, partial(self._from_the_start, quantised))

    def placed(self) -> None:
        """Weights are in their places: they are part of what is needed, and no longer free."""
        self._placed = sum(self._weights(self._programs.formats).values())

    def check(self, asked: Asked | AskedStep) -> None:
        """Raises InputError (field "memory") where this does not fit beside the weights that are placed."""
        self._check(asked, self._running)

    def needed(self, quantised: Collection[str] | None, asked: Asked | AskedStep | None) -> Parts:
        """Bytes by part at the worst moment from the loading of the weights on, as `check_load` has it: of
        the machine, or of a device that has memory of its own."""
        moments = self._from_the_start(quantised, self._programs.formats, asked, self._chunk)
        return next(iter(self._worst(moments).values()))

    def _from_the_start(
        self,
        quantised: Collection[str] | None,
        formats: Formats,
        asked: Asked | AskedStep | None,
        chunk: int | None,
    ) -> list[Moment]:
        found = [self._loading(formats, quantised)]
        return found if asked is None else found + self._running(formats, asked, chunk)

    def _check(
        self,
        asked: Asked | AskedStep | None,
        moments: Callable[[Formats, Asked | AskedStep | None, int | None], list[Moment]],
    ) -> None:
        if self._force:
            return
        formats, chunk = self._programs.formats, self._chunk
        needed = self._worst(moments(formats, asked, chunk))
        free = self._free()
        if not _lacks(needed, free):
            return
        free_memory.give_back()
        free = self._free()

        def fits(formats: Formats, asked: Asked | AskedStep | None, chunk: int | None) -> bool:
            return not _lacks(self._worst(moments(formats, asked, chunk)), free)

        short = _lacks(needed, free)
        if short:
            where, parts, capacity = short
            total = sum(parts.values())
            text = memory_text({**parts, "total": total, "capacity": capacity})
            placed = bool(self._placed)
            change = smallest_change(asked, formats, chunk, self._words, fits, placed)
            said = [f"{self._programs.model.name} needs {text} {where}"]
            said.append(self._nothing_less() if change is None else f"smallest change that fits: {change}")
            if "force" in self._words:
                said.append(f"{self._words['force']} goes on all the same")
            raise InputError("memory", format_bytes(total), "; ".join(said))

    def _nothing_less(self) -> str:
        if not self._programs.on_cpu:
            return "more devices would have more memory"
        if self._placed or "weights" not in self._words:
            return "no smaller request fits"
        return "neither int8 nor a smaller request would fit"

    def _worst(self, moments: Sequence[Moment]) -> dict[str, Parts]:
        """What is held at the worst moment: of the machine, and on each device with memory of its own."""
        if self._programs.on_cpu:
            return {_HOST: max((self._shared(moment) for moment in moments), key=_total)}
        device = max((moment.device for moment in moments), key=_total)
        return {_DEVICE: device, _HOST: max((moment.host for moment in moments), key=_total)}

    def _shared(self, moment: Moment) -> Parts:
        found = {part: size * len(self._devices) for part, size in moment.device.items()}
        for part, size in moment.host.items():
            found[part] = found.get(part, 0) + size
        return found

    def _free(self) -> dict[str, int | None]:
        """What there is for all that is needed, the weights that are placed included."""
        host, placed = free_memory.host_free_bytes(), self._placed
        if self._programs.on_cpu:
            if host is None:
                return {_HOST: None}
            return {_HOST: host - host // _SPARE + placed * len(self._devices)}
        device = free_memory.device_free_bytes(self._devices)
        return {_HOST: host, _DEVICE: None if device is None else device + placed}

    # -- the account --------------------------------------------------------------------------------------

    def _weights(self, formats: Formats) -> dict[str, int]:
        """Bytes of every parameter on a device, by its full name."""
        found = self._account(formats).weights(self._programs.storage)
        return {name: found[name.rpartition(".")[2]] for name in all_parameters(self._programs.model)}

    def _account(self, formats: Formats) -> Account:
        programs = self._programs
        return Account(programs.model, programs.mesh, formats, programs.run_options)

    def _loading(self, formats: Formats, quantised: Collection[str] | None) -> Moment:
        """The moment of placing weights that takes most: all that are placed, and copies of one."""
        weights, devices, peak, before = self._weights(formats), len(self._devices), 0, 0
        for name, row in all_parameters(self._programs.model).items():
            own = weights[name] * devices
            in_int8 = formats.weights == "int8" and row.quantisable
            copies = own if quantised is None else copy_bytes(row, own, in_int8, stored=name in quantised)
            peak = max(peak, copies + (before if self._programs.on_cpu else -own))
            before += own
        beyond = peak - before if self._programs.on_cpu else peak
        return Moment({"weights": before // devices}, {"loading": max(0, beyond)})

    def _running(self, formats: Formats, asked: Asked | AskedStep | None, chunk: int | None) -> list[Moment]:
        assert asked is not None
        if isinstance(asked, AskedStep):
            of_step = int(asked.shape.batch * asked.shape.queries) if asked.kind is None else 0
            logits = 4 * (of_step + asked.kept_tokens) * self._programs.padded["V"]
            host = {"programs": self._program_bytes(), "logits": asked.kept_bytes + logits}
            return [Moment(_held(*self._price(formats, asked.layout, asked.shape, asked.kind)), host)]
        assert self._sizes_of is not None
        return self._generating(formats, self._sizes_of(asked, chunk), asked.kind)

    def _generating(self, formats: Formats, sizes: StepSizes, kind: Kind) -> list[Moment]:
        """Prompts are read; they come into slots, and the first tokens are drawn; a token after the other."""
        shape = StepShape(sizes.rows, sizes.chunk, sizes.room if sizes.chunked else None)
        weights, prompts, reading = self._price(formats, sizes.prefill, shape, "greedy")
        shape = StepShape(sizes.count, self._programs.width, sizes.capacity)
        _, slots, decoding = self._price(
            formats, sizes.decode, shape, kind, verifies=self._programs.width > 1
        )
        per_slot = slots * product(self._programs.mesh.size, sizes.decode.attn_b) // sizes.count
        widens = self._programs.run_options.backend.widens and formats.kv == "bf16"
        moved = per_slot * (4 if widens else 1) + per_slot * sizes.rows * sizes.room // sizes.capacity
        draw = self._account(formats).first_draw(sizes.prefill, sizes.decode, sizes.rows, sizes.count, kind)
        # a prompt that is read in chunks moves to a cache twice as large when it needs one
        grown = prompts // 2 if sizes.chunked and sizes.fixed is None else 0
        host = {"programs": self._program_bytes()}
        # prompt, output and bias of each token, which any draw is given: as they are, as sent, and there
        host["penalties"] = 3 * 3 * 4 * sizes.count * self._programs.padded["V"]
        decoding_host = dict(host)
        if self._programs.width > 1:  # the step of drafts is compiled while that of one token runs
            decoding_host["programs"] += self._all_program_bytes() // _ONE_OF
        inserting = max(moved, draw)
        caches = Caches(slots, beside=0, prompts=prompts, copied=True)
        moments = account(weights, caches, Steps(max(reading, grown), inserting, decoding))
        return [
            Moment(_held(weights, int(live.kv), int(live.activations)), own)
            for live, own in zip(moments.values(), (host, host, decoding_host), strict=True)
        ]

    def _price(
        self, formats: Formats, layout: Layout, shape: StepShape, kind: Kind | None, verifies: bool = False
    ) -> Held:
        """A step on a device; kind None: with all logits."""
        held = self._account(formats).step(layout, shape, kind, verifies)
        if self._programs.on_cpu and "int8" in (formats.weights, formats.kv):
            # a block is made while another is multiplied with
            return held._replace(activations=held.activations + 2 * 4 * BLOCK_FLOATS)
        return held

    def _program_bytes(self) -> int:
        """What the host needs to compile and keep the programs that are still to be made."""
        whole = self._all_program_bytes()
        return whole // _ONE_OF if self._programs.traced else whole  # another shape compiles one or two

    def _all_program_bytes(self) -> int:
        """The same for the programs of one shape, which reads prompts and decodes, a token at a time."""
        backend = self._programs.run_options.backend
        return backend.program_bytes + backend.layer_program_bytes * self._programs.model.layers


_SPARE = 16
"""One of so many free bytes is left alone, so that what takes up to 6.6% beyond its account still fits. That
covers the 5.4% measured of 64 samples with an int8 cache, but not int8 weights: SmolLM2 took 24% to 45% more
(`bench/memory.py`)."""
_ONE_OF = 3
"""A program takes at most one in so many of the bytes that all of a shape take, compiling them included."""
_HOST, _DEVICE = "free on this machine", "free on each device"


def copy_bytes(row: Parameter, placed: int, in_int8: bool, stored: bool = False) -> int:
    """Bytes of a parameter and its copies on their way to devices, at most, where all of it is on one host.

    placed: what the devices hold of it in the end. stored: in int8 already in the checkpoint. What is read is
    in float32, once as it is stored and once in the order of the dims; quantising needs a second and the
    int8 numbers; what JAX is given is there beside what it makes of it.
    """
    numbers = row.count
    if not in_int8:
        return max(8 * numbers, 4 * numbers + 2 * placed)
    if stored:
        return 2 * numbers + 2 * placed
    by_rows = 0 not in row.summed_axes  # then blocks of it are floats at a time
    return max(2 * numbers if by_rows else 9 * numbers, numbers + 2 * placed)


class InOneLine:
    """While it lasts, what JAX or NumPy raises where there is no more memory becomes one InputError (field
    "memory")."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        if error is None or not isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)):
            return
        short = out_of_memory(error)
        if short is not None:
            del frames  # they would keep alive all that had been taken
            error.__traceback__ = None
            raise short from None


def _held(weights: int, kv: int, activations: int) -> Parts:
    return {"weights": weights, "kv": kv, "activations": activations}


def _total(parts: Parts) -> int:
    return sum(parts.values())


def _lacks(needed: Mapping[str, Parts], free: Mapping[str, int | None]) -> tuple[str, Parts, int] | None:
    """Where there is less than is needed, what is needed there, and what there is; None where all fits."""
    for where, parts in needed.items():
        capacity = free.get(where)
        if capacity is not None and sum(parts.values()) > capacity:
            return where, parts, capacity
    return None
