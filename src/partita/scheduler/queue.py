"""Who is next: the smallest priority, then the key that has had least, then who came first.

A key's service is counted in tokens, read ones once, as a request is admitted, and written ones `WRITTEN`
times; who was chosen stays next until there is room for it. A key that comes, or
comes again, starts at what the least served waiting key has had, so that nobody saves up for a burst: the
virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), section 4.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush, heapreplace

from partita.scheduler.request import Request

WRITTEN = 2
"""Cost of a written token in read ones, as in that paper's evaluation."""


class Account:
    """What one key has had at one priority: `read` tokens and those that its sequences write.

    Sequences that run write a token in every decode step: `running` x steps - `bases`, all together.
    """

    __slots__ = ("bases", "key", "listed", "paid", "running", "waiting")

    def __init__(self, key: Hashable):
        self.key = key
        self.paid = 0.0
        self.running = 0
        self.bases = 0  # sum of the decode steps after which each of them began
        self.listed = False  # whether its level's heap has it
        self.waiting: list[tuple[int, Request]] = []  # a heap by order of arrival

    def service(self, decoded: int) -> float:
        return self.paid + WRITTEN * (self.running * decoded - self.bases)

    def head(self) -> Request | None:
        """The first that waits; those that ended meanwhile are dropped."""
        waiting = self.waiting
        while waiting:
            if waiting[0][1].state == "waiting":
                return waiting[0][1]
            heappop(waiting)
        return None


class _Level:
    """Keys of one priority, by service; what a key had when it was last looked at, which only grows."""

    def __init__(self) -> None:
        self.accounts: dict[Hashable, Account] = {}
        self.keys: list[tuple[float, int, Account]] = []  # a heap of those with waiting requests
        self.count = 0  # waiting requests
        self.chosen: Request | None = None  # who is next, until it is served: it may wait for memory
        self.last = 0.0  # service of the key that was served last
        self.serial = 0

    def account(self, key: Hashable) -> Account:
        found = self.accounts.get(key)
        if found is None:
            found = self.accounts[key] = Account(key)
        return found

    def head(self, decoded: int) -> Request | None:
        if self.chosen is None or self.chosen.state != "waiting":
            self.chosen = self._choose(decoded)
        return self.chosen

    def _choose(self, decoded: int) -> Request | None:
        keys = self.keys
        while keys:
            known, serial, account = keys[0]
            request = account.head()
            if request is None:
                heappop(keys)
                account.listed = False
                continue
            service = account.service(decoded)
            if service <= known or len(keys) == 1:
                return request
            heapreplace(keys, (service, serial, account))
        return None


class Queue:
    """Requests that wait. `decoded` is always the scheduler's count of decode steps."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []  # priorities, ascending
        self.waiting = 0

    def __len__(self) -> int:
        return self.waiting

    def account(self, request: Request) -> Account:
        """The account of its key."""
        return self._level(request.priority).account(request.key)

    def push(self, request: Request, decoded: int) -> None:
        """One that came, or comes back to its place."""
        level = self._level(request.priority)
        account = level.account(request.key)
        level.count += 1
        self.waiting += 1
        if request.preemptions:
            level.chosen = None  # it may be before whoever came later
        if account.head() is None:
            if not request.preemptions:
                head = level.head(decoded)
                least = level.last if head is None else level.account(head.key).service(decoded)
                account.paid += max(0.0, least - account.service(decoded))
            if not account.listed:
                level.serial += 1
                heappush(level.keys, (account.service(decoded), level.serial, account))
                account.listed = True
        heappush(account.waiting, (request.order, request))

    def head(self, decoded: int) -> Request | None:
        """Who is next, if anybody."""
        if not self.waiting:
            return None
        for priority in self._order:
            level = self._levels[priority]
            if level.count:
                return level.head(decoded)
        return None

    def left(self, request: Request, decoded: int, served: bool) -> None:
        """A request no longer waits, as its state says already; `served`: since it was admitted."""
        level = self._level(request.priority)
        level.count -= 1
        self.waiting -= 1
        if served:
            level.last = level.account(request.key).service(decoded)

    def _level(self, priority: int) -> _Level:
        found = self._levels.get(priority)
        if found is None:
            found = self._levels[priority] = _Level()
            self._order = sorted(self._levels)
        return found
