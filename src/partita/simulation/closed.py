"""The steps of a closed loop, which are the same however long they take.

Clients send the next request when the one before is answered, and answers come at the ends of steps: so the
clock decides nothing, and what is scheduled once can be timed by any prices. A mean time of requests is then
a sum over steps: a step's seconds, as often as there are requests that it holds up.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from partita.scheduler import Capacity, Policy, Request, Step
from partita.simulation.load import Load
from partita.simulation.prices import Prices
from partita.simulation.result import Limits
from partita.simulation.run import Simulated, Simulation

Portions = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ClosedLoop:
    """Distinct steps: (portions, sequences, tokens attended to), and the requests that each holds up, all its
    repetitions together, over all requests: before their first token, and, divided by the tokens that each
    writes after its first, after it."""

    steps: tuple[tuple[Portions, int, float], ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    fused: bool

    def times(self, prices: Prices) -> tuple[float, float]:
        """Seconds to the first token and between two tokens, the means over requests."""
        seconds = [
            prices.step(portions, sequences, attended, self.fused)
            for portions, sequences, attended in self.steps
        ]
        first = sum(weight * each for weight, each in zip(self.before, seconds, strict=True))
        return first, sum(weight * each for weight, each in zip(self.after, seconds, strict=True))


def closed_steps(capacity: Capacity, policy: Policy, load: Load) -> ClosedLoop:
    """The steps of a load of clients whose outputs have 2 or more tokens; all requests count.

    Raises ValueError for an open loop, and a policy that limits of time, or another layout, decide in.
    """
    if load.arrival is not None or policy.paced or policy.switches:
        raise ValueError("only in a closed loop, by a policy without a clock, are steps known beforehand")
    recorder = _Recorder(Simulated(capacity, _NoPrices(), Limits()), policy, load, 0)  # pyright: ignore[reportArgumentType]
    recorder.result()
    held = recorder.held
    return ClosedLoop(
        tuple(held),
        tuple(before / load.requests for before, _ in held.values()),
        tuple(after / load.requests for _, after in held.values()),
        policy.fused,
    )


class _NoPrices:
    """Nobody asks."""

    layouts = ()


class _Recorder(Simulation):
    """Runs the load with steps of a second each, and counts whom they hold up."""

    def __init__(self, server: Simulated, policy: Policy, load: Load, skip: int):
        self.held: dict[tuple[Portions, int, float], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.before, self.after = 0, 0.0
        super().__init__(server, policy, load, skip)

    def comes(self, number: int) -> Request:
        self.before += 1
        return super().comes(number)

    def begins(self, number: int) -> None:
        super().begins(number)
        self.before -= 1
        self.after += 1 / (self.output[number] - 1)

    def ends(self, number: int) -> None:
        super().ends(number)
        self.after -= 1 / (self.output[number] - 1)

    def timed(self, step: Step) -> tuple[int, float]:
        steps = 1 if step.reads else int(self.scheduler.steps())
        attended = self.scheduler.cached + step.decode * (steps + 1) / 2
        portions = tuple((read.tokens, read.start) for read in step.reads)
        held = self.held[portions, step.decode, attended]
        held[0] += self.before * steps
        held[1] += self.after * steps
        return steps, float(steps)
