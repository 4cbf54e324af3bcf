"""Whatever comes, in whatever order: slots, memory, order and ends are right after every step."""

import copy
from collections import Counter
from math import inf

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partita.errors import InputError
from partita.scheduler import Capacity, Pace, Policy, Request, Scheduler

SIZE = 4


def hashes(group: int, number: int, tokens: int) -> list:
    """Of the full blocks of a prompt which begins as all of its group do, for 9 tokens."""
    return [(group, i) if (i + 1) * SIZE <= 9 else (group, number, i) for i in range(tokens // SIZE)]


policies = st.builds(
    Policy,
    name=st.just("drawn"),
    budget=st.integers(8, 24),
    first=st.sampled_from(["decode", "prefill"]),
    together=st.booleans(),
    chunked=st.booleans(),
    chunk=st.sampled_from([None, 5]),
    quantum=st.sampled_from([1, 3]),
    readers=st.sampled_from([None, 1, 2]),
    reserve=st.sampled_from(["prompt", "whole"]),
    watermark=st.sampled_from([0.0, 0.1]),
    paced=st.booleans(),
)


class Serving(RuleBasedStateMachine):
    @initialize(
        policy=policies,
        shards=st.sampled_from([1, 2]),
        blocks=st.sampled_from([None, 9, 16]),
        ahead=st.sampled_from([1, 3]),
        paced=st.booleans(),
    )
    def start(self, policy: Policy, shards: int, blocks: int | None, ahead: int, paced: bool) -> None:
        self.capacity = Capacity(slots=6, tokens=30, blocks=blocks, block=SIZE, shards=shards, ahead=ahead)
        pace = Pace(lambda sequences, cached: max(0, 9 - sequences - cached // 30), 40.0) if paced else None
        self.scheduler = Scheduler(self.capacity, policy, pace)
        self.policy, self.now = policy, 0.0
        self.requests: list[Request] = []
        self.ended: Counter[tuple[int, int]] = Counter()
        self.began: Counter[int] = Counter()
        self.known: dict[Request, int] = {}  # how far each has been read, as the steps said

    # -- what may happen --------------------------------------------------------------------------------

    @rule(
        prompt=st.integers(1, 22),
        output=st.integers(1, 12),
        samples=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 1]),
        key=st.sampled_from("ab"),
        group=st.sampled_from([None, 0, 1]),
        wait=st.sampled_from([inf, inf, 5.0]),
    )
    def come(self, prompt, output, samples, priority, key, group, wait) -> None:
        request = Request(
            len(self.requests),
            prompt,
            output,
            samples=samples,
            arrival=self.now,
            priority=priority,
            key=key,
            deadline=self.now + wait,
            blocks=[] if group is None else hashes(group, len(self.requests), prompt),
        )
        longest = prompt + output - 1
        shared = prompt // SIZE
        needed = shared + samples * (-(-(longest + self.capacity.ahead - 1) // SIZE) - shared)
        fits = longest <= 30 and samples <= 6 // self.capacity.shards
        fits = fits and (self.capacity.blocks is None or needed <= self.capacity.blocks)
        if not fits:
            with pytest.raises(InputError):
                self.scheduler.add(request)
            return
        self.scheduler.add(request)
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def vanish(self, data) -> None:
        request = data.draw(st.sampled_from(self.requests))
        was = list(request.live)
        self.scheduler.cancel(request)
        self.ended.update((request.number, s.sample) for s in was)
        assert request.state == "ended"

    @rule(data=st.data(), leaps=st.booleans())
    def step(self, data, leaps: bool) -> None:
        self.run(data, leaps)

    def run(self, data, leaps: bool) -> bool:
        """A step; whether there was one."""
        scheduler = self.scheduler
        due = [r for r in self.requests if r.state != "ended" and r.deadline <= self.now]
        self.ended.update((request.number, s.sample) for request in due for s in request.live)
        assert sorted(r.number for r in scheduler.expire(self.now)) == [r.number for r in due]
        before = set(scheduler.reading)
        step = scheduler.schedule(self.now)
        for request in step.preempted:
            self.known.pop(request, None)
            assert request.state in ("waiting", "reading")  # it may have been admitted again at once
        self.check_reads(step, before)
        steps = 1
        if leaps and step.decode and not step.reads:
            steps = int(min(scheduler.steps(), 50))
            assert steps >= 1
            self.check_leap(step, steps)
        stop, extra = [], {}
        if data is not None and step.decode:
            running = list(scheduler.running.values())
            stop = data.draw(st.lists(st.sampled_from(running), max_size=1))
            if self.capacity.ahead > 1 and steps == 1:
                extra = {s: data.draw(st.integers(0, self.capacity.ahead - 1)) for s in running}
        began, over = scheduler.finish(step, stop, steps, extra)
        self.began.update(request.number for request in began)
        self.ended.update((s.request.number, s.sample) for s in over)
        for sequence in over:
            assert sequence.written >= sequence.request.output or sequence in stop
        self.now += steps
        return bool(step)

    def check_reads(self, step, before) -> None:
        policy = self.policy
        tokens = sum(read.tokens for read in step.reads)
        whole = not policy.chunked and len(step.reads) == 1
        limit = policy.budget - (step.decode if policy.together and policy.first == "decode" else 0)
        assert tokens <= limit or whole
        assert policy.readers is None or len(step.reads) <= policy.readers
        if not policy.together:
            assert not (step.reads and step.decode)
        for request, start, count, ends in step.reads:
            assert count >= 1
            assert start == self.known.get(request, request.reused)
            assert ends == (start + count == request.length)
            assert policy.chunk is None or not policy.chunked or count <= policy.chunk
            assert ends or (policy.chunked and count % policy.quantum == 0)
            self.known[request] = start + count
            if ends:
                del self.known[request]
            if request not in before:  # admitted now: nobody of its key and priority had come earlier
                assert not [
                    other
                    for other in self.requests
                    if other.state == "waiting"
                    and (other.priority, other.key) == (request.priority, request.key)
                    and other.order < request.order
                ]

    def check_leap(self, step, steps: int) -> None:
        """As many single steps give the same, and each of them the same schedule."""
        one, many = copy.deepcopy((self.scheduler, step)), copy.deepcopy((self.scheduler, step))
        many[0].finish(many[1], (), steps)
        scheduler, again = one
        for i in range(steps):
            if i:
                again = scheduler.schedule(self.now)
                assert not again.reads
                assert not again.preempted
                assert again.decode == step.decode
            scheduler.finish(again)
        assert sorted(scheduler.running) == sorted(many[0].running)
        assert scheduler.memory.used_blocks == many[0].memory.used_blocks
        assert (scheduler.decoded, scheduler.cached) == (many[0].decoded, many[0].cached)

    # -- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def slots_are_those_of_live_requests(self) -> None:
        scheduler = self.scheduler
        held = [s.slot for r in self.requests if r.state in ("reading", "running") for s in r.live]
        assert len(set(held)) == len(held) == scheduler.memory.used_slots
        free = [slot for shard in scheduler.memory.shards for slot in shard.free]
        assert sorted(held + free) == list(range(6))
        assert {s.slot: s for r in self.requests if r.state == "running" for s in r.live} == scheduler.running
        assert set(scheduler.reading) == {r for r in self.requests if r.state == "reading"}
        assert scheduler.queue.waiting == sum(r.state == "waiting" for r in self.requests)
        for request in self.requests:
            each = 6 // self.capacity.shards
            if request.state in ("reading", "running"):
                assert {s.slot // each for s in request.live} == {request.shard}

    @invariant()
    def blocks_are_those_of_live_requests(self) -> None:
        if self.capacity.blocks is None:
            return
        for index, shard in enumerate(self.scheduler.memory.shards):
            shared, own = set(), 0
            for request in self.requests:
                if request.state in ("reading", "running") and request.shard == index:
                    shared |= set(request.blocks[: request.held])
                    own += self.blocks_of(request) - request.held
            blocks = shard.blocks
            assert blocks is not None
            assert blocks.used == own + len(shared)
            assert 0 <= blocks.available <= self.capacity.blocks
            assert blocks.used + blocks.cached <= self.capacity.blocks

    def blocks_of(self, request: Request) -> int:
        """By the definition: the prompt's full blocks once, and for each sequence those after them."""
        shared, found = request.prompt // SIZE, request.prompt // SIZE
        for sequence in request.live:
            tokens = request.prompt + sequence.written
            if request.state == "running":
                tokens = request.prompt + self.scheduler.written(sequence) - 1
            if self.policy.reserve == "whole":
                tokens = request.prompt + request.output - 1
            found += -(-tokens // SIZE) - shared
        return found

    @invariant()
    def cached_tokens_are_those_of_running_sequences(self) -> None:
        tokens = 0
        for sequence in self.scheduler.running.values():
            tokens += sequence.request.prompt + self.scheduler.written(sequence) - 1
        assert tokens == self.scheduler.cached

    def teardown(self) -> None:
        """Nobody new comes: all end, each sequence once, and nothing is left in use."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.run(None, False) and all(r.state == "ended" for r in self.requests):
                break
        assert all(r.state == "ended" for r in self.requests)
        assert all(count == 1 for count in self.ended.values())
        assert set(self.ended) == {(r.number, s.sample) for r in self.requests for s in r.sequences}
        assert self.scheduler.memory.used_slots == 0
        assert self.scheduler.memory.used_blocks == 0
        assert self.scheduler.queue.waiting == 0
        assert not self.scheduler.reading
        for shard in self.scheduler.memory.shards:
            if shard.blocks is not None:
                assert not shard.blocks.reading
                assert shard.blocks.growing == 0
                assert not any(shard.blocks.classes)
                assert shard.blocks.private == 0


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)


class ManyServings(Serving):
    """The same, longer."""


TestManyServings = pytest.mark.full(ManyServings.TestCase)
TestManyServings.settings = settings(
    max_examples=1500,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)
