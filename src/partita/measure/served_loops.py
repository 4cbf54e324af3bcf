"""Published points of served models, through the scheduler: what their clients saw, by each engine's policy.

The points are those of `served_points.py`. There the time between tokens comes from a closed form; here the
clients' closed loop is scheduled, each engine by its own policy, and its steps are timed by a profile. Steps
of a closed loop do not depend on how long they take, so each point is scheduled once for all profiles.

`python -m partita.measure.served_loops` prints the errors of the published profile, and of one that is fitted
through the loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from partita.measure.fit import Measurement, fit, leave_out, unfitted, with_held_out
from partita.measure.served_points import NAME, SCALE, STARTS, Block, blocks, read_rows
from partita.scheduler import POLICIES, Policy, parse_policy
from partita.simulation.closed import ClosedLoop, closed_steps
from partita.simulation.load import Load
from partita.simulation.prices import Prices, Pricing, Sizes
from partita.simulation.server import Server
from partita.specs import Profile
from partita.specs.catalogue import measured_rows
from partita.specs.catalogue import profile as catalogue_profile

ENGINES: Mapping[str, Policy] = {
    "trtllm": POLICIES["mixed"],
    "vllm": parse_policy("decode-first:8192"),
    "sglang": POLICIES["prefill-first"],
}
"""The policy of each engine, with its default budget for a server on an H100."""

WAVES = 10
"""Requests of each client: what load generators send where nothing else is asked."""


class Times(NamedTuple):
    """Seconds to the first token and between two tokens, [rows] each, the means over requests."""

    ttft: np.ndarray
    tpot: np.ndarray


@dataclass(frozen=True)
class Loops:
    """The rows of a block, each a closed loop of its clients, by the policy of its engine."""

    block: Block
    waves: int = WAVES
    engines: Mapping[str, Policy] = field(default_factory=lambda: ENGINES)
    _kept: list[tuple[Profile, Times]] = field(default_factory=list, compare=False, repr=False)

    @cached_property
    def policy(self) -> Policy:
        return self.engines[self.block.rows[0].engine]

    @cached_property
    def server(self) -> Server:
        served, rows = self.block.served, self.block.rows
        longest = max(row.prompt + row.output - 1 for row in rows)
        slots = max(row.concurrency for row in rows)
        return Server(served.setting, served.roles, served.roles, slots, longest)

    @cached_property
    def steps(self) -> tuple[ClosedLoop, ...]:
        """Of every row."""
        capacity, found = self.server.capacity(self.policy.budget), []
        for row in self.block.rows:
            count = self.waves * row.concurrency
            lengths = (np.full(count, length) for length in (row.prompt, row.output, 0))
            load = Load(*lengths, arrival=None, clients=row.concurrency)
            found.append(closed_steps(capacity, self.policy, load))
        return tuple(found)

    def bounds(self) -> Times:
        """What no run of these steps can beat."""
        return self._times(self.prices())

    def estimated(self, profile: Profile) -> Times:
        """By a profile; the times of the last one asked for are kept."""
        if not self._kept or self._kept[0][0] is not profile:
            self._kept[:] = [(profile, self._times(self.prices(profile)))]
        return self._kept[0][1]

    @property
    def points(self) -> tuple[Measurement, ...]:
        """As those of the block, but timed through the loops."""
        return tuple(
            replace(point, seconds_by=lambda profile, i=i: float(self.estimated(profile).tpot[i]))
            for i, point in enumerate(self.block.points)
        )

    def prices(self, profile: Profile | None = None) -> Prices:
        """Of the engine's steps, by a profile, or at peak."""
        budget, server, served = self.policy.budget, self.server, self.block.served
        if profile is None:
            pricing = Pricing(served.setting, server.storage, "bound", served.peaks)
        else:
            peaks = served.estimated_peaks(profile)
            pricing = Pricing(served.setting, server.storage, "estimate", peaks, profile)
        sizes = Sizes(server.slots, max(budget + server.slots, server.context), server.context)
        return Prices(pricing, server.prefill, [server.decode], sizes)

    def _times(self, prices: Prices) -> Times:
        return Times(*np.array([loop.times(prices) for loop in self.steps]).T)


def loops(waves: int = WAVES, engines: Mapping[str, Policy] = ENGINES) -> tuple[Loops, ...]:
    """All published points."""
    return tuple(Loops(block, waves, engines) for block in blocks(read_rows(measured_rows(NAME))))


def refit(found: Sequence[Loops], starts: Mapping[str, float] = STARTS, held_out: bool = True) -> Profile:
    """The profile fitted through the loops; what is fixed is the catalogue's."""
    points = [point for each in found for point in each.points]
    template = unfitted(catalogue_profile(NAME), points)
    fixed = {name: constant for name, constant in template.constants.items() if name not in starts}
    template = template.model_copy(update={"constants": fixed})
    profile = fit(points, template, starts, SCALE).profile
    return with_held_out(profile, leave_out(points, template, starts, SCALE)) if held_out else profile


def errors(found: Sequence[Loops], profile: Profile) -> dict[str, dict[str, float]]:
    """For each engine, and all: points, and relative errors of the two times, mean and median."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for each in found:
        times, rows = each.estimated(profile), each.block.rows
        off = times.tpot / each.block.measured - 1, times.ttft / np.array([row.ttft for row in rows]) - 1
        for name in (rows[0].engine, "all"):
            parts.setdefault(name, []).append(off)
    said = {}
    for name, off in sorted(parts.items()):
        tpot, ttft = (np.concatenate(column) for column in zip(*off, strict=True))
        said[name] = {
            "points": len(tpot),
            "tpot_mean": float(np.abs(tpot).mean()),
            "tpot_bias": float(np.median(tpot)),
            "ttft_median": float(np.median(np.abs(ttft))),
            "ttft_bias": float(np.median(ttft)),
        }
    return said


def main() -> None:
    found = loops()
    shipped = catalogue_profile(NAME)
    faster = [
        row.name
        for each in found
        for row, bound in zip(each.block.rows, each.bounds().tpot, strict=True)
        if row.seconds < bound
    ]
    print(f"faster than their bound: {faster or 'none'}")
    for name, profile in (("as published", shipped), ("fitted through loops", refit(found, held_out=False))):
        print(name, {key: round(constant.value, 10) for key, constant in profile.constants.items()})
        for engine, said in errors(found, profile).items():
            print(f"  {engine}: " + ", ".join(f"{key} {value:.3g}" for key, value in said.items()))


if __name__ == "__main__":
    main()
