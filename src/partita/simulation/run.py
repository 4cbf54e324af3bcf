"""The scheduler on the cost model's clock: a load through a server, step by step, equal steps in one leap.

Requests that come during a step are seen at its end, as an engine sees them. What is measured is what a
client would: the times at which tokens come out of the steps.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from partita.scheduler import Capacity, Pace, Policy, Request, Scheduler, Step, Switching
from partita.simulation.load import Load
from partita.simulation.prices import Prices
from partita.simulation.recording import Recording
from partita.simulation.result import Limits, Result


@dataclass(frozen=True)
class Simulated:
    """A server: what it holds, what its steps take, and the limits that its policy keeps, if any."""

    capacity: Capacity
    prices: Prices
    limits: Limits = field(default_factory=Limits)


def simulate(server: Simulated, policy: Policy, load: Load, skip: int = 0) -> Result:
    """Runs a load to its end; the first `skip` requests do not count in what is measured of requests.

    Raises InputError naming the field of a request that the server can never serve, or (field "skip") where
    none would count.
    """
    load.check_skip(skip)
    return Simulation(server, policy, load, skip).result()


class Simulation:
    """One simulation as it goes on; `result` runs it to its end."""

    def __init__(self, server: Simulated, policy: Policy, load: Load, skip: int):
        self.prices, self.policy, self.load, self.skip = server.prices, policy, load, skip
        self.scheduler = Scheduler(server.capacity, policy, self._pace(server.limits), self._switching())
        self.prompt, self.output, self.prefix = (
            column.tolist() for column in (load.prompt, load.output, load.prefix)
        )
        closed = load.arrival is None
        # in a closed loop those of the clients are there at once, the others come as requests end
        known = np.zeros(load.requests) if load.arrival is None else load.arrival
        self.arrival = array("d", known.tolist())
        self.coming = 0  # the next request that has not come
        self.sent = load.clients if closed else load.requests  # requests whose arrival is known
        self.closed = closed
        self.first, self.end = (array("d", bytes(8 * load.requests)) for _ in range(2))
        self.recording = Recording(server.capacity)
        self.now = 0.0
        self.busy = 0.0
        self.steps = 0
        self._began: dict[int, float] = {}  # when those had a token that have not been decoded since
        self._decoded = 0.0  # when the others had their last
        self._lost: dict[int, float] = {}  # the same of those that were preempted
        self._layout = 0  # of decode, in which the cache lies

    def result(self) -> Result:
        self._go()
        load, skip, scheduler = self.load, self.skip, self.scheduler
        arrival, first, end = (
            np.frombuffer(column)[skip:] for column in (self.arrival, self.first, self.end)
        )
        switching = scheduler.switching
        return Result(
            policy=self.policy.name,
            arrival=arrival,
            ttft=first - arrival,
            e2e=end - arrival,
            output=load.output[skip:],
            prompt=load.prompt[skip:],
            itl=self.recording.gaps(),
            seconds=float(end.max() - arrival.min()),
            busy_share=self.busy / self.now if self.now else 0.0,
            steps=self.steps,
            series=self.recording.series(self.now),
            most_waiting=self.recording.most_waiting,
            most_slots=self.recording.most_slots,
            preemptions=scheduler.preemptions,
            reused_tokens=scheduler.reused,
            moves=0 if switching is None else switching.moves,
        )

    def _go(self) -> None:
        scheduler, recording = self.scheduler, self.recording
        while True:
            if self.coming < self.sent and self.arrival[self.coming] <= self.now:
                self._come()
            step = scheduler.schedule(self.now)
            if not step:
                if self.coming >= self.sent:
                    return
                recording.holds(self.now, self.arrival[self.coming], scheduler)
                self.now = self.arrival[self.coming]
                continue
            for request in step.preempted:
                if request.sequences[0].written:
                    last = self._began.pop(request.number, self._decoded)
                    self._lost.setdefault(request.number, last)
            steps, seconds = self.timed(step)
            before, self.now = self.now, self.now + seconds
            self.busy += seconds
            self.steps += steps
            recording.holds(before, self.now, scheduler)
            if step.decode:
                self._write(step.decode, steps, seconds)
            began, ended = scheduler.finish(step, (), steps)
            for request in began:
                number = request.number
                if number in self._lost:
                    recording.gap(self.now - self._lost.pop(number), 1)
                else:
                    self.begins(number)
                if request.state == "running":
                    self._began[number] = self.now
            for sequence in ended:
                self.ends(sequence.request.number)
                sequence.request.sequences = ()  # nobody asks again: so that its memory is free at once

    def comes(self, number: int) -> Request:
        """A request comes."""
        return Request(
            number, self.prompt[number], self.output[number], 1, self.prefix[number], self.arrival[number]
        )

    def begins(self, number: int) -> None:
        """A request has its first token."""
        self.first[number] = self.now

    def ends(self, number: int) -> None:
        """A request has its last token; in a closed loop its client sends another."""
        self.end[number] = self.now
        if self.closed and self.sent < self.load.requests:
            self.arrival[self.sent] = self.now
            self.sent += 1

    def _come(self) -> None:
        """All that have come by now are known to the scheduler."""
        now, arrival, number = self.now, self.arrival, self.coming
        while number < self.sent and arrival[number] <= now:
            self.scheduler.add(self.comes(number))
            number += 1
        self.coming = number

    def timed(self, step: Step) -> tuple[int, float]:
        """How often a step is run, and the seconds of all of them."""
        scheduler, prices, n = self.scheduler, self.prices, step.decode
        decode = prices.layouts[step.layout]
        if step.reads:
            portions = [(read.tokens, read.start) for read in step.reads]
            moved = 0.0
            if prices.moves:
                moved = sum(prices.moved(read.request.length) for read in step.reads if read.ends)
            attended = scheduler.cached + n
            seconds = prices.step(portions, n, attended, self.policy.fused, step.layout)
            return 1, seconds + moved + self._moved(step)
        cached = scheduler.cached
        most = scheduler.steps()
        one = decode(n, cached + n)
        if most > 1:
            stop = scheduler.wakes(self.now)
            if self.coming < self.sent and scheduler.admits():
                stop = min(stop, self.arrival[self.coming])
            if stop < inf:
                left = stop - self.now
                few = min(most, max(1, ceil(left / one)))
                if few > 1:  # steps grow as the cache does
                    few = max(1, ceil(left / decode(n, cached + n * (few + 1) / 2)))
                most = min(most, few)
            steps = int(most)
            # the mean of steps whose cache grows evenly is that of the middle one
            one = decode(n, cached + n * (steps + 1) / 2)
            return steps, steps * one + self._moved(step)
        return 1, one + self._moved(step)

    def _moved(self, step: Step) -> float:
        """Seconds of moving the cache to another decode layout."""
        if not step.moves:
            return 0.0
        source, target = self._layout, step.layout
        self._layout = target
        return self.prices.switched(self.scheduler.cached, source, target)

    def _write(self, sequences: int, steps: int, seconds: float) -> None:
        """Tokens of so many sequences in each of the steps: the first comes a gap after their last one."""
        gap, record = seconds / steps, self.recording.gap
        first = self.now - seconds + gap  # when the first of these steps ended
        for began in self._began.values():
            record(first - began, 1)
        old = sequences - len(self._began)
        if old > 0:
            record(first - self._decoded, old)
        if steps > 1:
            record(gap, sequences * (steps - 1))
        self._began.clear()
        self._decoded = self.now

    def _pace(self, limits: Limits) -> Pace | None:
        if limits.tpot is None:
            return None
        prices, fused, tpot = self.prices, self.policy.fused, limits.tpot

        def tokens(sequences: int, cached: int) -> int:
            return prices.tokens_within(tpot, sequences, cached + sequences, fused)

        return Pace(tokens, inf if limits.ttft is None else limits.ttft)

    def _switching(self) -> Switching | None:
        prices = self.prices
        if not self.policy.switches or len(prices.layouts) < 2:
            return None

        def seconds(sequences: int, cached: int) -> list[float]:
            return [decode(sequences, cached + sequences) for decode in prices.layouts]

        def move(cached: int, source: int, target: int) -> float:
            return prices.switched(cached, source, target)

        return Switching(seconds, move)
