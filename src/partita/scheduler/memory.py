"""What a server holds: slots and KV memory, shard by shard; who gets which, and gives them back.

Knows nothing of the order in which requests come, nor of steps.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, inf

from partita.errors import InputError
from partita.scheduler.blocks import Blocks
from partita.scheduler.policy import Policy
from partita.scheduler.request import Request, Sequence


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a server holds.

    slots: sequences that are written together, those being read among them.
    tokens: most tokens in the cache of one sequence: prompt and output but for the last token, which is never
        read; None where only the blocks limit it.
    blocks: KV memory of each shard, in blocks of `block` tokens; None where every slot has memory of its own.
    shards: equal parts of the batch, each with its slots, which are numbered shard by shard, and its blocks.
    ahead: most tokens that one step adds to a sequence: more than 1 where drafts are verified.

    Raises InputError naming the field.
    """

    slots: int
    tokens: int | None = None
    blocks: int | None = None
    block: int = 16
    shards: int = 1
    ahead: int = 1

    def __post_init__(self) -> None:
        for name in ("slots", "tokens", "blocks", "block", "shards", "ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(name, value, "a whole number of at least 1 is accepted")
        if self.slots % self.shards:
            raise InputError("slots", self.slots, f"must be a multiple of the shards, {self.shards}")

    def check(self, request: Request) -> None:
        """Raises InputError naming the field of a request that can never be served."""
        cached = request.prompt + request.output - 1
        if self.tokens is not None and cached > self.tokens:
            message = f"prompt and output may have up to {self.tokens + 1} tokens together"
            raise InputError("context", cached + 1, message)
        if request.samples > self.slots // self.shards:
            message = f"at most {self.slots // self.shards} samples of a prompt are accepted"
            raise InputError("samples", request.samples, message)
        if self.blocks is not None:
            shared, end = request.prompt // self.block, -(-(cached + self.ahead - 1) // self.block)
            if shared + request.samples * (end - shared) > self.blocks:
                message = f"this needs more memory than there is, {self.blocks * self.block} tokens"
                raise InputError("context", cached + 1, message)


class Shard:
    """Free slots, the lowest last, and memory, of one part of the batch."""

    __slots__ = ("blocks", "free", "requests")

    def __init__(self, slots: range, blocks: Blocks | None):
        self.free = list(reversed(slots))
        self.blocks = blocks
        self.requests = 0  # that have a place here


class Memory:
    """Slots and blocks of all shards. `decoded` is always the scheduler's count of decode steps.

    While a request is read, its blocks are `Request.private` and the first `Request.held` of its shared ones.
    Once it runs, `private` counts only the full blocks of its prompt that are not shared; a sequence has
    those beyond, as many as its length says.
    """

    def __init__(self, capacity: Capacity, policy: Policy):
        self.capacity = capacity
        self.whole = policy.reserve == "whole"
        self.margin = ceil(policy.watermark * (capacity.blocks or 0))
        each, size = capacity.slots // capacity.shards, capacity.block
        self.shards = [
            Shard(
                range(i * each, (i + 1) * each),
                None if capacity.blocks is None else Blocks(capacity.blocks, size),
            )
            for i in range(capacity.shards)
        ]
        self.used_slots = 0
        self._blocks = [shard.blocks for shard in self.shards if shard.blocks is not None]

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold."""
        return sum(blocks.used for blocks in self._blocks)

    @property
    def cached_blocks(self) -> int:
        """Blocks that nobody holds and that can be reused."""
        return sum(blocks.cached for blocks in self._blocks)

    def evicted(self) -> list[Hashable]:
        """Shared blocks that have been given up since this was last asked."""
        found: list[Hashable] = []
        for blocks in self._blocks:
            if blocks.evicted:
                found += blocks.evicted
                blocks.evicted = []
        return found

    # -- a request comes in, and goes -----------------------------------------------------------------------

    def admit(self, request: Request, decoded: int, most: int | None) -> bool:
        """Gives a request its slots and memory; not where there are too few, where more than `most` tokens
        would be left to read, or where another is reading what it can reuse."""
        place = self._place(request, decoded)
        if place is None:
            return False
        index, matched, own = place
        shard = self.shards[index]
        reused = matched * self.capacity.block
        if request.prefix > reused and not request.preemptions:
            reused = request.prefix
        if most is not None and request.length - reused > most:
            return False
        if (blocks := shard.blocks) is not None:
            if request.blocks:
                full = self._full(request)
                if matched < full and request.blocks[matched] in blocks.reading:
                    return False
                blocks.reading.update(request.blocks[matched : request.prompt // blocks.size])
                for block in request.blocks[:matched]:
                    blocks.hold(block)
            blocks.take(own)
        shard.requests += 1
        for sequence in request.live:
            sequence.slot = shard.free.pop()
            self.used_slots += 1
        request.shard, request.held, request.private = index, matched, own
        request.read = request.reused = reused
        return True

    def _place(self, request: Request, decoded: int) -> tuple[int, int, int] | None:
        """The shard for a request: of those with room the one with most of its blocks, then with most free
        slots. With it the blocks that it reuses there, and those that it takes; None where it fits nowhere.
        """
        samples, best, found = len(request.live), (-1, 0), None
        for index, shard in enumerate(self.shards):
            if len(shard.free) < samples:
                continue
            blocks, matched, own = shard.blocks, 0, 0
            if blocks is not None:
                if request.blocks:
                    matched = blocks.match(request.blocks, self._full(request))
                own = self._needed(request) - matched
                spare = self.margin + blocks.starting(decoded, self.capacity.ahead) if shard.requests else 0
                if not blocks.room_for(request.blocks[:matched], own + spare):
                    continue
            if (matched, len(shard.free)) > best:
                best, found = (matched, len(shard.free)), (index, matched, own)
        return found

    def _full(self, request: Request) -> int:
        """Full blocks of its prompt whose hashes are known, such that a token is left to read."""
        size = self.capacity.block
        return min(len(request.blocks), request.prompt // size, (request.length - 1) // size)

    def _needed(self, request: Request) -> int:
        """Blocks of a request's prompt and what its sequences have written, or may write where their whole
        memory is reserved; full ones of the prompt counted once."""
        shared = request.prompt // self.capacity.block
        return shared + sum(self._end(request, s.written) - shared for s in request.live)

    def _end(self, request: Request, written: int) -> int:
        """Blocks of one sequence, those of the prompt among them, when it is admitted."""
        cached = request.prompt + (request.output - 1 if self.whole else written)
        return -(-cached // self.capacity.block)

    def publish(self, request: Request, tokens: int) -> None:
        """Full blocks of the prompt within the first `tokens` can be shared from now on."""
        blocks = self.shards[request.shard].blocks
        if blocks is not None:
            most = min(len(request.blocks), min(tokens, request.prompt) // blocks.size)
            while request.held < most:
                blocks.publish(request.blocks[request.held])
                request.held += 1
                request.private -= 1

    def release(self, request: Request) -> None:
        """A request whose sequences have left gives back the rest."""
        shard = self.shards[request.shard]
        shard.requests -= 1
        if (blocks := shard.blocks) is not None:
            blocks.give(request.private)
            if request.blocks:
                if request.state == "reading":
                    blocks.reading.difference_update(request.blocks[request.held :])
                blocks.let_go(request.blocks[: request.held])
        request.private = request.held = 0

    # -- sequences ------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """A request has been read; its sequences have their `base`."""
        blocks = self.shards[request.shard].blocks
        if blocks is not None:
            request.private = request.prompt // blocks.size - request.held
            if not self.whole:
                for sequence in request.live:
                    blocks.grows(sequence.base, 1)

    def leave(self, sequence: Sequence, decoded: int, runs: bool, keeps: bool = False) -> None:
        """A sequence gives back its slot and the blocks that are its alone; `keeps`: those of them whose
        hashes are known can be reused. `runs`: whether it was running, not being read."""
        request = sequence.request
        shard = self.shards[request.shard]
        if runs and (blocks := shard.blocks) is not None:
            size, shared = blocks.size, request.prompt // blocks.size
            cached = decoded - sequence.base
            own = (self._end(request, 0) if self.whole else -(-cached // size)) - shared
            if keeps and request.blocks:
                for block in request.blocks[request.held : cached // size]:
                    blocks.publish(block)
                    if request.held < shared:
                        request.private -= 1
                    else:
                        own -= 1
                    request.held += 1
            blocks.give(own)
            if not self.whole:
                blocks.grows(sequence.base, -1)
        shard.free.append(sequence.slot)
        self.used_slots -= 1
        sequence.slot = -1

    # -- steps ----------------------------------------------------------------------------------------------

    def short(self, decoded: int) -> int | None:
        """A shard whose memory is not enough for the next decode step."""
        for index, blocks in enumerate(self._blocks):
            if blocks.growing and blocks.starting(decoded, self.capacity.ahead) > blocks.available:
                return index
        return None

    def grow(self, decoded: int, steps: int) -> None:
        """The first `decoded` decode steps are followed by so many more."""
        for blocks in self._blocks:
            if blocks.growing and (count := blocks.starting(decoded, steps)):
                blocks.take(count)

    def jump(self, sequence: Sequence, decoded: int, tokens: int) -> None:
        """A sequence grows by so many tokens more than others, before its base says so."""
        blocks = self.shards[sequence.request.shard].blocks
        if blocks is not None and not self.whole:
            cached = decoded - sequence.base
            blocks.take(-(-(cached + tokens) // blocks.size) - -(-cached // blocks.size))
            blocks.grows(sequence.base, -1)
            blocks.grows(sequence.base - tokens, 1)

    def most_steps(self, decoded: int) -> float:
        """Decode steps of one token that pass until `short` finds a shard."""
        most = inf
        for blocks in self._blocks:
            most = min(most, blocks.most_steps(decoded))
        return most - self.capacity.ahead + 1
