"""KV memory of one batch shard as blocks of tokens, and the prompts' blocks that can be read once for many.

Blocks are counted, not placed: where they lie is the engine's. A block that can be reused is known by a hash
of its tokens and of all before it, so that a dict of such hashes is a radix tree over blocks: whoever holds a
block holds those before it. What nobody holds is kept until its room is needed, least recently used first;
the blocks of a request are let go from the last to the first, so none goes before what hangs on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf


class Blocks:
    """`total` blocks of `size` tokens.

    Sequences that grow by a token in every decode step are counted by where in a block they stand, so that
    any number of steps is counted at once: `classes[r]` of them start a block in the steps d with
    (r + d) % size == 0, where r is that of the tokens cached before step 0.
    """

    def __init__(self, total: int, size: int):
        self.total, self.size = total, size
        self.private = 0  # blocks of one sequence or request each
        self.classes = [0] * size
        self.growing = 0
        self.reading: set[Hashable] = set()  # blocks that will be there once those who read have read them
        self.evicted: list[Hashable] = []  # since the scheduler last told
        self._holders: dict[Hashable, int] = {}
        self._unused: dict[Hashable, None] = {}  # least recently used first

    @property
    def used(self) -> int:
        """Blocks that requests hold, shared ones counted once."""
        return self.private + len(self._holders) - len(self._unused)

    @property
    def available(self) -> int:
        """Blocks that can be taken, those that nobody holds among them."""
        return self.total - self.used

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and that can be reused."""
        return len(self._unused)

    # -- blocks of one sequence -----------------------------------------------------------------------------

    def take(self, count: int) -> None:
        """Raises ValueError where there are not as many."""
        held = self.private + count + len(self._holders)
        if held - len(self._unused) > self.total:
            raise ValueError(f"{count} blocks are wanted of {self.available}")
        self.private += count
        for _ in range(held - self.total):
            oldest = next(iter(self._unused))
            del self._unused[oldest], self._holders[oldest]
            self.evicted.append(oldest)

    def give(self, count: int) -> None:
        self.private -= count

    # -- sequences that grow --------------------------------------------------------------------------------

    def grows(self, base: int, change: int) -> None:
        """A sequence with `base` (see `Sequence`) begins (1) or ends (-1) to grow."""
        self.classes[-base % self.size] += change
        self.growing += change

    def starting(self, decoded: int, steps: int) -> int:
        """Blocks that are started in the `steps` decode steps after the first `decoded`."""
        classes, size = self.classes, self.size
        if steps == 1:
            return classes[-decoded % size]
        whole, part = divmod(steps, size)
        found = whole * self.growing
        for step in range(decoded, decoded + part):
            found += classes[-step % size]
        return found

    def most_steps(self, decoded: int) -> float:
        """Decode steps that the blocks are enough for; infinite where nothing grows."""
        if not self.growing:
            return inf
        cycles, left = divmod(self.available, self.growing)
        classes, size, steps = self.classes, self.size, cycles * self.size
        while (left := left - classes[-(decoded + steps) % size]) >= 0:
            steps += 1
        return steps

    # -- blocks that are shared -----------------------------------------------------------------------------

    def match(self, blocks: Sequence[Hashable], most: int) -> int:
        """How many of the first `most` blocks are there."""
        found = 0
        while found < most and blocks[found] in self._holders:
            found += 1
        return found

    def room_for(self, blocks: Sequence[Hashable], own: int) -> bool:
        """Whether these shared blocks, which are there, can be held and `own` more be taken."""
        unused = self._unused
        return (
            own + sum(block in unused for block in blocks) <= self.available
            if blocks
            else (own <= self.available)
        )

    def hold(self, block: Hashable) -> None:
        """Holds one that is there."""
        self._holders[block] += 1
        self._unused.pop(block, None)

    def publish(self, block: Hashable) -> None:
        """A private block can be shared from now on; whoever had it holds it. Where there was one already,
        that one is held and the private one given back."""
        self.private -= 1
        self.reading.discard(block)
        if block in self._holders:
            self.hold(block)
        else:
            self._holders[block] = 1

    def let_go(self, blocks: Sequence[Hashable]) -> None:
        """No longer holds these, the first blocks of a prompt."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._unused[block] = None
