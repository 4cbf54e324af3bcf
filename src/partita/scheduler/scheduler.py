"""Continuous batching: which prompts are read and which sequences are written in the next step.

Whoever drives it asks `schedule` for a step, runs it (on an engine, or on a cost model's clock), and tells
`finish` what came of it. A request waits, is read chunk by chunk into slots and memory that it got when it
was admitted, then each of its sequences writes a token in every decode step until it ends. Where a decode
step would need more memory than there is, whoever came last goes back to its place in the queue, and what it
had is read again. Knows no clock but the seconds it is given, no tokens, and not how steps are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from partita.errors import InputError
from partita.scheduler.memory import Capacity, Memory
from partita.scheduler.policy import Policy
from partita.scheduler.queue import WRITTEN, Queue
from partita.scheduler.request import Reason, Request, Sequence
from partita.scheduler.step import Read, Step
from partita.scheduler.switching import Switching


@dataclass(frozen=True)
class Pace:
    """The limits that a plan keeps, as a cost model knows them.

    tokens: from decoding sequences and their cached tokens, all together, to the most prompt tokens that a
        step may read beside them within the limit on the time between tokens.
    max_ttft: seconds. Once a request has waited for half of them its prompt is read whatever `tokens` says:
        of the two limits the one on the time between tokens gives way.
    """

    tokens: Callable[[int, int], int]
    max_ttft: float = inf


class Scheduler:
    """Drives a server of this capacity by a policy. Raises InputError (field "budget") where a step's budget
    is less than the tokens that all slots write in it."""

    def __init__(
        self,
        capacity: Capacity,
        policy: Policy,
        pace: Pace | None = None,
        switching: Switching | None = None,
    ):
        least = capacity.slots + policy.quantum - 1
        if policy.together and policy.budget < least:
            raise InputError(
                "budget", policy.budget, f"must be at least {least} tokens for {capacity.slots} slots"
            )
        self.capacity, self.policy, self.pace = capacity, policy, pace if policy.paced else None
        self.switching = switching if policy.switches else None
        self.memory = Memory(capacity, policy)
        self.queue = Queue()
        self.reading: dict[Request, None] = {}  # in the order of their admission
        self.running: dict[int, Sequence] = {}  # by slot
        self.decoded = 0  # decode steps so far
        self.preemptions = 0
        self.reused = 0  # tokens that did not have to be read
        self._came = 0
        self._bases = 0  # sum over running sequences
        self._ends: list[tuple[int, int, int, Sequence]] = []  # a heap by decode steps
        self._deadlines: list[tuple[float, int, Request]] = []

    # -- requests come and go -------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A request comes. Raises InputError naming the field of one that can never be served."""
        if request.state != "new":
            raise ValueError(f"request {request.number} has come before")
        self.capacity.check(request)
        self._came += 1
        request.order, request.length = self._came, request.prompt
        if request.samples == 1:
            request.sequences = (Sequence(request, 0),)
        else:
            request.sequences = tuple(Sequence(request, sample) for sample in range(request.samples))
        request.state = "waiting"
        if request.deadline < inf:
            heappush(self._deadlines, (request.deadline, request.order, request))
        self.queue.push(request, self.decoded)

    def cancel(self, request: Request, reason: Reason = "cancelled") -> None:
        """Nobody waits for it any more: its slots and memory are free at once. Nothing where it has ended."""
        for sequence in request.live:
            self._end(sequence, reason)

    def expire(self, now: float) -> list[Request]:
        """Cancels the requests whose deadline has passed."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heappop(self._deadlines)[2]
            if request.state != "ended":
                self.cancel(request, "deadline")
                found.append(request)
        return found

    # -- steps ----------------------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> Step:
        """What is to be done next: nothing where nobody is here. `finish` is told of it before the next."""
        step = Step()
        if self.running:
            self._make_room(step)
        policy, decoding = self.policy, len(self.running)
        may_read = policy.together or policy.first == "prefill" or not decoding
        if may_read and (self.reading or self.queue.head(self.decoded) is not None):
            self._read(step, now, decoding)
        if decoding and (policy.together or not step.reads):
            step.decode = decoding
            if self.switching is not None:
                step.moves = self.switching.choose(decoding, self.cached)
                step.layout = self.switching.layout
        step.evicted = self.memory.evicted()
        return step

    def steps(self) -> float:
        """How often the decode step that `schedule` gave, without reads, can be repeated before anything
        changes, if no request comes: 1 or more."""
        ends = self._ends
        while ends and not self._is_end(ends[0][0], ends[0][3]):
            heappop(ends)
        found = min(ends[0][0] - self.decoded if ends else inf, self.memory.most_steps(self.decoded))
        if self.switching is not None:
            found = min(found, self.switching.steps())
        return found

    def admits(self) -> bool:
        """Whether a request that comes now might be begun beside what is running: where not, whoever leaps
        over decode steps need not stop for it."""
        if self.policy.first == "decode" and not self.policy.together and self.running:
            return False
        return self.queue.head(self.decoded) is None and any(shard.free for shard in self.memory.shards)

    def wakes(self, now: float) -> float:
        """When, after `now` on the driver's clock, something is due that is no step: a deadline, or a request
        that has waited for half of its time to the first token."""
        while self._deadlines and self._deadlines[0][2].state == "ended":
            heappop(self._deadlines)
        found = self._deadlines[0][0] if self._deadlines else inf
        if self.pace is not None and (head := self.queue.head(self.decoded)) is not None:
            due = head.arrival + self.pace.max_ttft / 2
            found = min(found, due) if due > now else found
        return found

    def finish(
        self,
        step: Step,
        ended: Iterable[Sequence] = (),
        steps: int = 1,
        extra: Mapping[Sequence, int] | None = None,
    ) -> tuple[list[Request], list[Sequence]]:
        """What came of a step: who has the first token now (or the next, where it was preempted), and which
        sequences have written all that they may, or are in `ended`: those that stopped by themselves.

        steps: how often a step without reads was run. extra: tokens beyond the first that the step added to
        sequences, at most `Capacity.ahead` - 1.
        """
        over: list[Sequence] = []
        if step.decode:
            self.memory.grow(self.decoded, steps)
            self.decoded += steps
            if self.switching is not None:
                self.switching.went(steps)
            if extra:
                for sequence, tokens in extra.items():
                    self._jump(sequence, tokens)
            ends, decoded = self._ends, self.decoded
            while ends and ends[0][0] <= decoded:
                end, _, _, sequence = heappop(ends)
                if self._is_end(end, sequence):
                    self._end(sequence, "length")
                    over.append(sequence)
        began = []
        for request, _, tokens, ends_here in step.reads:
            if request.state != "reading":  # cancelled meanwhile
                continue
            request.read += tokens
            if request.blocks:
                self.memory.publish(request, request.read)
            if ends_here:
                self._begin(request, over)
                began.append(request)
        for sequence in ended:
            if not sequence.ended:
                self._end(sequence, "stop")
                over.append(sequence)
        return began, over

    # -- what there is --------------------------------------------------------------------------------------

    @property
    def cached(self) -> int:
        """Tokens in the cache of all running sequences."""
        return len(self.running) * self.decoded - self._bases

    def written(self, sequence: Sequence) -> int:
        """Output tokens of a sequence so far."""
        if sequence.slot not in self.running:
            return sequence.written
        return self.decoded - sequence.base - sequence.request.prompt + 1

    # -- reading --------------------------------------------------------------------------------------------

    def _read(self, step: Step, now: float, decoding: int) -> None:
        """Portions of the prompts that are being read, then of those that can be admitted."""
        policy, pace = self.policy, self.pace
        budget = policy.budget
        if policy.together and policy.first == "decode":
            budget -= decoding
        paced = budget
        if pace is not None and decoding and policy.together:
            paced = min(budget, pace.tokens(decoding, self.cached))
        for request in self.reading:
            portion = self._portion(step, request, self._allowed(request, now, budget, paced))
            if portion <= 0:
                return
            budget, paced = budget - portion, paced - portion
        while budget > 0 and (policy.readers is None or len(step.reads) < policy.readers):
            request = self.queue.head(self.decoded)
            if request is None:
                return
            allowed = self._allowed(request, now, budget, paced)
            if allowed < policy.quantum or not self._admit(request, allowed, step):
                return
            portion = self._portion(step, request, allowed)
            budget, paced = budget - portion, paced - portion

    def _allowed(self, request: Request, now: float, budget: int, paced: int) -> int:
        """Tokens that a step may still read of a prompt; all of the budget where it is due."""
        if paced < budget and self.pace is not None and now >= request.arrival + self.pace.max_ttft / 2:
            return budget
        return paced

    def _portion(self, step: Step, request: Request, allowed: int) -> int:
        """The next tokens of a prompt become part of the step; how many, or 0 for none."""
        policy, start = self.policy, request.read
        left = request.length - start
        if policy.readers is not None and len(step.reads) >= policy.readers:
            return 0
        if not policy.chunked:
            tokens = left if left <= allowed or not step.reads else 0
        else:
            tokens = min(left, allowed, policy.chunk or left)
            if tokens < left:
                tokens -= tokens % policy.quantum
        if tokens > 0:
            step.reads.append(Read(request, start, tokens, tokens == left))
        return max(0, tokens)

    def _admit(self, request: Request, allowed: int, step: Step) -> bool:
        """Gives a request its place, where there is one; one to be read whole, where it fits the step or is
        alone in it."""
        most = None if self.policy.chunked or not step.reads else allowed
        if not self.memory.admit(request, self.decoded, most):
            return False
        self.reused += request.reused
        if not request.preemptions:  # what was lost for others is not paid twice
            self.queue.account(request).paid += request.length - request.reused
        request.state = "reading"
        self.reading[request] = None
        self.queue.left(request, self.decoded, served=True)
        return True

    # -- writing --------------------------------------------------------------------------------------------

    def _begin(self, request: Request, over: list[Sequence]) -> None:
        """A request has been read: its sequences have a token each and run."""
        decoded, account = self.decoded, self.queue.account(request)
        request.state = "running"
        del self.reading[request]
        live = request.live
        for sequence in live:
            sequence.base = base = decoded - request.prompt - sequence.written
            sequence.end = base + request.prompt + request.output - 1
            self.running[sequence.slot] = sequence
            self._bases += base
        account.running += len(live)
        account.bases += decoded * len(live)
        account.paid += WRITTEN * len(live)
        self.memory.begin(request)
        for sequence in live:
            if sequence.end <= decoded:
                self._end(sequence, "length")
                over.append(sequence)
            else:
                heappush(self._ends, (sequence.end, request.order, sequence.sample, sequence))

    def _is_end(self, end: int, sequence: Sequence) -> bool:
        """Whether a sequence ends then; not where it has ended, or was preempted, or got tokens ahead."""
        return sequence.end == end and self.running.get(sequence.slot) is sequence

    def _jump(self, sequence: Sequence, tokens: int) -> None:
        """A sequence has got so many tokens more than one in this step."""
        if tokens and self.running.get(sequence.slot) is sequence:
            request = sequence.request
            self.memory.jump(sequence, self.decoded, tokens)
            sequence.base -= tokens
            sequence.end -= tokens
            self._bases -= tokens
            self.queue.account(request).bases -= tokens
            heappush(self._ends, (sequence.end, request.order, sequence.sample, sequence))

    def _make_room(self, step: Step) -> None:
        """Preempts until a decode step has the memory it needs: who came last, of the largest priority."""
        while (index := self.memory.short(self.decoded)) is not None:
            inside = {s.request for s in self.running.values() if s.request.shard == index}
            inside |= {request for request in self.reading if request.shard == index}
            last = max(inside, key=lambda request: (request.priority, request.order))
            self._preempt(last)
            step.preempted.append(last)

    def _preempt(self, request: Request) -> None:
        """Back to its place in the queue; what it had is to be read again."""
        for sequence in request.live:
            self._leave(sequence)
        self.memory.release(request)
        self.reading.pop(request, None)
        self.preemptions += 1
        request.preemptions += 1
        request.length = request.prompt + sum(sequence.written for sequence in request.live)
        request.read = request.reused = 0
        request.state = "waiting"
        self.queue.push(request, self.decoded)

    def _end(self, sequence: Sequence, reason: Reason) -> None:
        """A sequence ends, and its request with the last of them."""
        request, waits = sequence.request, sequence.request.state == "waiting"
        if not waits:
            self._leave(sequence, keeps=request.samples == 1 and reason in ("length", "stop"))
        sequence.ended = True
        if request.live:
            return
        if not waits:
            self.memory.release(request)
        self.reading.pop(request, None)
        request.state, request.reason = "ended", reason
        if waits:
            self.queue.left(request, self.decoded, served=False)

    def _leave(self, sequence: Sequence, keeps: bool = False) -> None:
        """A sequence gives back its slot, and the blocks that are its alone."""
        runs = self.running.pop(sequence.slot, None) is not None
        if runs:
            request, account = sequence.request, self.queue.account(sequence.request)
            begun = sequence.base + request.prompt + sequence.written
            account.running -= 1
            account.bases -= begun
            account.paid += WRITTEN * (self.decoded - begun)
            self._bases -= sequence.base
            sequence.written = self.decoded - sequence.base - request.prompt + 1
        self.memory.leave(sequence, self.decoded, runs, keeps)
