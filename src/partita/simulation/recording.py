"""What a simulation keeps as it goes on: gaps between tokens, and how full the server is over time."""

from __future__ import annotations

from array import array

import numpy as np

from partita.scheduler import Capacity, Scheduler
from partita.simulation.result import Floats, Series

_PARTS = 256
"""Parts of the time that are kept apart at least, up to twice as many."""


class Recording:
    """Gaps are kept one by one, as many as were equal in a leap together; what is held as its integral over
    parts of the time, which become twice as long whenever there are too many."""

    def __init__(self, capacity: Capacity):
        self._blocks = None if capacity.blocks is None else capacity.blocks * capacity.shards
        self._gaps, self._counts = array("d"), array("d")
        self._part = 0.0  # seconds of one, 0 as long as nothing has happened
        self._held: list[list[float]] = [[0.0] * 3 for _ in range(2 * _PARTS)]
        self.most_waiting = self.most_slots = 0

    def gap(self, seconds: float, count: int) -> None:
        """So many tokens came so long after the one before them."""
        self._gaps.append(seconds)
        self._counts.append(count)

    def gaps(self) -> tuple[Floats, Floats]:
        return np.frombuffer(self._gaps), np.frombuffer(self._counts)

    def holds(self, start: float, end: float, scheduler: Scheduler) -> None:
        """What the scheduler holds now is so from `start` to `end`."""
        if end <= start:
            return
        if not self._part:
            self._part = max(end / _PARTS, 1e-9)
        while end >= self._part * 2 * _PARTS:
            self._held = [
                [a + b for a, b in zip(*self._held[i : i + 2], strict=True)] for i in range(0, 2 * _PARTS, 2)
            ] + [[0.0] * 3 for _ in range(_PARTS)]
            self._part *= 2
        waiting, slots = scheduler.queue.waiting, scheduler.memory.used_slots
        if waiting > self.most_waiting:
            self.most_waiting = waiting
        if slots > self.most_slots:
            self.most_slots = slots
        memory = 0.0 if self._blocks is None else scheduler.memory.used_blocks / self._blocks
        part, i = self._part, int(start / self._part)
        while start < end:
            until = (i + 1) * part
            if until > end:
                until = end
            if until > start:
                held, seconds = self._held[i], until - start
                held[0] += waiting * seconds
                held[1] += slots * seconds
                held[2] += memory * seconds
                start = until
            i += 1

    def series(self, end: float) -> Series:
        """Means over each part of the time until `end`."""
        if not self._part:
            return Series(np.zeros(1), np.ones(1), *(np.zeros(1) for _ in range(3)))
        count = max(1, int(np.ceil(end / self._part)))
        start = np.arange(count, dtype=np.float64) * self._part
        lengths = np.maximum(np.minimum(self._part, end - start), 1e-12)
        waiting, slots, memory = np.array(self._held[:count]).T / lengths
        return Series(start, lengths, waiting, slots, memory)
