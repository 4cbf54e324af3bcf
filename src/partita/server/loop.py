"""The engine's clock: one thread that asks the scheduler for steps and runs them, for all requests at once.

The thread owns slots, scheduler and kept prefixes; requests come and go through a list under a lock, and what
is written goes to each request's `tell`, called in that thread. Prompts are read one at a time, in chunks, a
chunk between two decode steps. Knows texts only as an `Ending` has them, and no HTTP.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.engine.ahead import Compiling, serving_jobs
from partita.engine.engine import Engine
from partita.engine.generation import likely_of
from partita.engine.memory import Asked, AskedStep
from partita.engine.prefixes import Prefix, Prefixes
from partita.engine.requests import Sample
from partita.engine.slots import Place, Slots, Tokens
from partita.engine.stopping import Ending
from partita.errors import InputError, one_line
from partita.planner.run_memory import StepShape
from partita.program.ops import NO_TOKEN
from partita.program.positions import by_length
from partita.scheduler import Capacity, Read, Request, Scheduler, Step
from partita.scheduler import Sequence as Written
from partita.server.generation import Busy, Failed, Generation, Stopping, Tell, TimedOut
from partita.server.grammar import Grammar
from partita.server.metrics import Metrics
from partita.server.policy import own_policy
from partita.specs.sampling import Sampling


@dataclass(frozen=True)
class Limits:
    """What the server takes on.

    queue: requests that wait, at most. seconds: a request is ended after; None for never. prefixes: prompts
    whose caches are kept for those that begin alike; None for as many as there are slots.
    """

    queue: int = 256
    seconds: float | None = None
    prefixes: int | None = None


class EngineLoop:
    """Runs an engine for whoever submits requests. Raises InputError (field "memory") where slots, and caches
    kept for reuse, need more than there is."""

    def __init__(self, engine: Engine, limits: Limits = Limits()):
        self.engine, self.limits = engine, limits
        (_, self.reading), (decoding, _) = engine.shapes.closed()
        self.decoding = replace(decoding, own=())
        self.context = engine.shapes.tokens
        """Tokens, prompt and output, that a request may have."""
        chunk = self.reading.widths[-1]
        self.policy = own_policy(self.decoding.count, chunk)
        self.capacity = Capacity(slots=self.decoding.count, tokens=self.context)
        kept = self.decoding.count if limits.prefixes is None else limits.prefixes
        if any(by_length(engine.model, local) for local in (False, True)):
            kept = 0  # keys are turned by the length of their own prompt
        self._check_memory(kept)
        tail = chunk - 1 if engine.model.window is not None else None
        self.prefixes = Prefixes(kept, tail)
        self._copied = jax.jit(partial(jax.tree.map, jnp.copy))
        self._reset()
        self.metrics = Metrics(engine.model.name, self)
        self._numbers = count()
        self._inbox: list[tuple[str, Generation]] = []
        self._condition = threading.Condition()
        self._stopping = False
        self._waiting = 0  # requests that have not been admitted
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.ready = threading.Event()
        self.error: BaseException | None = None
        """Why the thread has ended, where it should not have."""

    def _check_memory(self, kept: int) -> None:
        engine, reading, into = self.engine, self.reading, self.decoding
        engine.memory.check(Asked((1,), (Sampling(max_tokens=max(1, self.context - 1)),), into.count))
        widest = reading.widths[-1]
        each = _bytes(engine.programs.cache(reading.layout, reading.rows, reading.room or 0, widest))
        slots = _bytes(engine.programs.slots(into.layout, into.count, into.capacity))
        shape = StepShape(reading.rows, widest, reading.room)
        engine.memory.check(AskedStep(reading.layout, shape, "full", kept_bytes=slots + kept * each))

    def _reset(self) -> None:
        self.slots = Slots(self.engine.programs, self.engine.parameters, self.decoding)
        self.scheduler = Scheduler(self.capacity, self.policy)
        self.prefixes.clear()
        self._prefix: Prefix | None = None  # what the request that may be begun next begins with
        self.running: dict[Request, Generation] = {}

    # -- from other threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Compiles all steps in the background, then takes requests; `ready` is set then."""
        self._thread.start()

    def wait(self) -> None:
        """Returns once requests are taken. Raises what the thread has ended by before that."""
        while not self.ready.wait(0.2):
            if not self._thread.is_alive() and self.error is not None:
                raise self.error

    def check(self, ids: Sequence[int], sampling: Sampling) -> Request:
        """What the scheduler is asked. Raises InputError naming the field of what can never be served."""
        tokens = len(ids) + sampling.max_tokens
        if tokens > self.context:
            message = (
                f"prompt {len(ids)} + output {sampling.max_tokens} exceeds the {self.context} tokens served"
            )
            raise InputError("context", tokens, message)
        if sampling.n > self.capacity.slots:
            raise InputError("n", sampling.n, f"at most {self.capacity.slots} samples of a prompt are served")
        return Request(next(self._numbers), len(ids), sampling.max_tokens, sampling.n)

    def submit(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        ending: Callable[[], Ending],
        tell: Tell,
        priority: int = 0,
        key: str = "",
        grammar: Grammar | None = None,
    ) -> Generation:
        """Puts a request in the queue. grammar: what its texts must follow. Raises Busy where the queue is
        full, Stopping while the server drains, and InputError as `check` does."""
        request, now = self.check(ids, sampling), time.monotonic()
        request.priority, request.key, request.arrival = priority, key, now
        request.deadline = inf if self.limits.seconds is None else now + self.limits.seconds
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        found = Generation(
            ids, sampling, [ending() for _ in range(sampling.n)], tell, request, seed, now, grammar=grammar
        )
        with self._condition:
            if self._stopping or self.error is not None:
                raise Stopping
            if self._waiting >= self.limits.queue:
                self.metrics.rejected()
                raise Busy(self.metrics.seconds_for(self._waiting))
            self._waiting += 1
            self._inbox.append(("add", found))
            self._condition.notify()
        return found

    def cancel(self, generation: Generation) -> None:
        """Nobody waits for it any more; its slots are free before the next step. It is told nothing more."""
        with self._condition:
            self._inbox.append(("cancel", generation))
            self._condition.notify()

    def stop(self) -> None:
        """Takes no more requests, and ends once those that there are have ended."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def waiting(self) -> int:
        return self._waiting

    def join(self, seconds: float | None = None) -> bool:
        """Waits for the end; whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            Compiling(serving_jobs(self.engine.programs, self.reading, self.decoding)).wait()
            self._warm()
            self.ready.set()
            while self._take():
                self._step()
        except BaseException as error:
            self.error = error
            self._give_up(error)
            raise

    def _warm(self) -> None:
        """Runs one short prompt twice, so that whatever else a first step needs is there."""
        tokens = min(2 * self.reading.widths[-1], self.context - 2)
        if tokens < 1:
            return
        ids, sampling = [0] * tokens, Sampling(max_tokens=2, ignore_eos=True)
        for _ in range(2):
            request = self.check(ids, sampling)
            silent: Tell = lambda sample, piece: None  # noqa: E731
            self._add(Generation(ids, sampling, [Ending(sampling)], silent, request, 0, time.monotonic()))
            while self.running:
                self._step()
        self.prefixes.clear()
        self.metrics = Metrics(self.engine.model.name, self)

    def _take(self) -> bool:
        """Takes what has come in; waits where there is nothing to do. False once all is done for good."""
        with self._condition:
            while not self._inbox and not self.running:
                if self._stopping:
                    return False
                self._condition.wait()
            inbox, self._inbox = self._inbox, []
        for what, generation in inbox:
            if what == "add":
                self._add(generation)
            else:
                self._end(generation, "abort")
        return True

    def _add(self, generation: Generation) -> None:
        self.running[generation.request] = generation
        self.scheduler.add(generation.request)

    def _step(self) -> None:
        now = time.monotonic()
        for request in self.scheduler.expire(now):
            generation = self.running[request]
            generation.tell(-1, TimedOut())
            self._end(generation, "abort")
        self._find_prefix()
        step = self.scheduler.schedule(now)
        if not step:
            return
        try:
            ended = self._decode(step) + [one for read in step.reads for one in self._read(read)]
            self.scheduler.finish(step, ended)
        except Exception as error:
            self._failed(error)
            return
        self.metrics.stepped(step.read_tokens + step.decode)
        for request in {sequence.request for sequence in ended}:
            if request.state == "ended" and request in self.running:
                generation = self.running[request]
                self._end(generation, "error" if generation.failed else "")

    def _find_prefix(self) -> None:
        """Tells the next request how much of its prompt is kept, where it may be begun: prompts are read one
        at a time."""
        scheduler = self.scheduler
        if scheduler.reading or scheduler.memory.used_slots == self.capacity.slots:
            return
        head = scheduler.queue.head(scheduler.decoded)
        if head is not None and not head.preemptions:
            self._prefix, head.prefix = self.prefixes.match(self.running[head].ids)

    def _decode(self, step: Step) -> list[Written]:
        """A token for every running sequence; those that have ended with it."""
        if not step.decode:
            return []
        running = list(self.scheduler.running.values())
        return self._push(self.slots.step(lambda: self._masks(running)), running)

    def _masks(self, sequences: Sequence[Written]) -> dict[int, np.ndarray]:
        """Which tokens may be drawn next, of the sequences that follow a grammar, by their slots. One that
        cannot be followed further ends its request, whatever is drawn."""
        found = {}
        for sequence in sequences:
            generation = self.running[sequence.request]
            if generation.followers:
                allowed = generation.followers[sequence.sample].allowed()
                if allowed is not None:
                    found[sequence.slot] = allowed
        return found

    def _read(self, read: Read) -> list[Written]:
        """The next chunk of a prompt; with the last its sequences begin. Those of them that end at once."""
        generation = self.running.get(read.request)
        if generation is None:
            return []
        if generation.prompts is None:
            self._begin(generation, read.start)
        prompts = generation.prompts
        assert prompts is not None
        while prompts.read < read.start + read.tokens and not prompts.done:
            self.slots.advance(prompts)
        if not read.ends:
            return []
        sequences, masked = list(read.request.live), generation.grammar is not None
        places = [
            Place(0, sequence.slot, Sample(generation.sampling, generation.seed, sequence.sample, masked))
            for sequence in sequences
        ]
        found = self.slots.insert(prompts, places, lambda: self._masks(sequences))
        self.prefixes.keep(generation.ids, prompts.cache)
        generation.prompts = None
        return self._push(found, sequences)

    def _begin(self, generation: Generation, start: int) -> None:
        reading, ids = self.reading, generation.ids
        generation.began = time.monotonic()
        with self._condition:
            self._waiting -= self._waiting > 0
        widths = self.engine.shapes.widths(reading, len(ids) - start)
        prompts = self.slots.begin([ids], reading.layout, reading.rows, widths, reading.room)
        if start:
            prefix, self._prefix = self._prefix, None
            assert prefix is not None  # it was found for this step
            self.prefixes.used(prefix)
            logits = self.engine.programs.last_logits(reading.layout, reading.rows)
            prompts.cache, prompts.logits = self._copied(prefix.cache), self.engine.programs.empty(logits)
            prompts.room, prompts.read = reading.room or 0, start
        generation.prompts = prompts

    def _push(self, found: Tokens, sequences: Sequence[Written]) -> list[Written]:
        """Gives each sequence its new tokens; those that have ended, whose slots are free."""
        ended, now = [], time.monotonic()
        for sequence in sequences:
            generation = self.running[sequence.request]
            ending = generation.endings[sequence.sample]
            for token, numbers in found.of(sequence.slot):
                if error := self._problem(generation, sequence, token):
                    generation.failed = True
                    generation.tell(-1, error)
                if generation.failed:
                    ended.append(sequence)
                    break
                piece = ending.push(token, likely_of(numbers, generation.sampling.logprobs))
                generation.tokens += 1
                self.metrics.token(generation, now)
                generation.tell(sequence.sample, piece)
                if ending.finish is None and not generation.goes_on(sequence.sample, token):
                    generation.tell(sequence.sample, ending.close())
                if ending.finish is not None:
                    ended.append(sequence)
                    break
        self._free(ended)
        return ended

    def _free(self, sequences: Iterable[Written]) -> None:
        """Their slots, of those that have one."""
        for sequence in sequences:
            if sequence.slot >= 0 and self.slots.samples[sequence.slot] is not None:
                self.slots.free(sequence.slot)

    def _problem(self, generation: Generation, sequence: Written, token: int) -> Exception | None:
        """Why a token is none that its sample can go on with."""
        if generation.failed:
            return None
        if token == NO_TOKEN:
            written = generation.endings[sequence.sample].tokens
            return self.engine.not_finite([generation.ids], 0, written)
        if generation.grammar is not None and (error := generation.followers[sequence.sample].error):
            return Failed(f"the form that was asked for could not be followed: {error}")
        return None

    def _end(self, generation: Generation, reason: str) -> None:
        """A request is over: nothing of it is left in slots, queue or scheduler."""
        request = generation.request
        if self.running.pop(request, None) is None:
            return
        with self._condition:
            if not generation.began:
                self._waiting -= self._waiting > 0
        self._free(request.live)
        if request.state != "ended":
            self.scheduler.cancel(request)
        generation.prompts = None
        self.metrics.ended(generation, reason or (generation.endings[0].finish or "stop"))

    def _failed(self, error: Exception) -> None:
        """A step has failed: what was in the slots is lost, and the server goes on with empty ones."""
        reason = Failed(f"a step failed: {one_line(f'{type(error).__name__}: {error}')}")
        lost = list(self.running.values())
        with self._condition:
            self._waiting -= sum(not generation.began for generation in lost)
        self._reset()
        self._tell_all(lost, reason)  # who may come again at once

    def _give_up(self, error: BaseException) -> None:
        """The thread ends: so does all that is here."""
        reason = error if isinstance(error, Exception) else Failed(str(error))
        with self._condition:
            left, self._inbox, self._waiting = self._inbox, [], 0
        lost = list(self.running.values())
        self.running.clear()
        self._tell_all(lost + [generation for what, generation in left if what == "add"], reason)

    def _tell_all(self, lost: Sequence[Generation], reason: Exception) -> None:
        for generation in lost:
            generation.tell(-1, reason)
            self.metrics.ended(generation, "error")


def _bytes(cache: Any) -> int:
    return sum(math.prod(t.shape) * t.dtype.itemsize for t in jax.tree.leaves(cache))
