"""A phase as estimated: seconds of a step and of the whole, each with its interval; and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.cost.estimate import StepEstimate, estimate, sending_seconds
from partita.cost.interval import Asked, Interval, around, interval
from partita.cost.ledger import Ledger
from partita.cost.number import Number
from partita.cost.phase import PhaseRun
from partita.cost.setting import Setting, slowest_axis
from partita.specs.profile import Profile


@dataclass(frozen=True)
class EstimateClock:
    """Tells what everything is expected to take, with the efficiencies of a profile."""

    setting: Setting
    profile: Profile

    @property
    def host_seconds(self) -> float:
        return self.profile.value("step_seconds")

    def stage_seconds(self, ledger: Ledger) -> Number:
        return estimate(ledger, self.setting.peaks, self.profile).device_seconds

    def hop_seconds(self, sent_bytes: Number) -> Number:
        level = self.setting.cluster.fabric[slowest_axis(self.setting.cluster)].kind
        return sending_seconds(sent_bytes / self.setting.hop_bandwidth, level, self.profile)


@dataclass(frozen=True)
class PhaseEstimate:
    """The estimate of a phase; each figure is found when first looked at.

    `busiest` is the ledger of `PhaseRun.busiest` for the longest step, its batch cut as for the bound.
    """

    run: PhaseRun
    busiest: Ledger
    profile: Profile

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of the longest step: not below the bound, though a runtime may cut the batch otherwise."""
        timed = self._as_run.step_seconds(self._as_run.longest, self._clock)
        return max(timed, self.run.step_seconds(self.run.longest))

    @cached_property
    def total_seconds(self) -> float:
        """Seconds of the whole phase: not below the bound either."""
        return max(self._as_run.total_seconds(self._clock), self.run.total_seconds())

    @cached_property
    def interval(self) -> Interval:
        return interval(self.profile, asked_of(self.run))

    @cached_property
    def ledger(self) -> Ledger:
        """What a chip of the busiest pipeline stage does in a step, the batch cut as the runtime cuts it."""
        timed = self._as_run
        return self.busiest if timed is self.run else timed.busiest(timed.longest).ledger

    @cached_property
    def parts(self) -> StepEstimate:
        """Seconds of `ledger` by part; the host's are in no stage."""
        return estimate(self.ledger, self.run.setting.peaks, self.profile)

    @cached_property
    def _as_run(self) -> PhaseRun:
        return _as_run(self.run, self.profile)

    @property
    def _clock(self) -> EstimateClock:
        return EstimateClock(self.run.setting, self.profile)

    @cached_property
    def step_interval(self) -> tuple[float, float]:
        """Seconds that a step takes at least (not below the bound) and at most, in 90 of 100 cases."""
        return around(self.step_seconds, self.run.step_seconds(self.run.longest), self.interval)

    @cached_property
    def total_interval(self) -> tuple[float, float]:
        """Seconds that the whole phase takes at least and at most, likewise."""
        return around(self.total_seconds, self.run.total_seconds(), self.interval)

    @cached_property
    def step_parts(self) -> dict[str, float]:
        """Seconds of a step by what takes them; they add up to it.

        "operation_seconds" makes up for what the parts lack where the estimate is held at the bound, and
        "idle_seconds" is what the busiest pipeline stage waits for others and for what is sent between them.
        """
        found = self.parts
        others = {
            "communication_seconds": float(found.communication_seconds),
            "layer_seconds": float(found.layer_seconds),
            "host_seconds": found.host_seconds,
        }
        idle = self.step_seconds - float(found.step_seconds) if self.run.setting.stages > 1 else 0.0
        idle = max(0.0, idle)
        operations = self.step_seconds - idle - sum(others.values())
        return {"operation_seconds": operations, **others, "idle_seconds": idle}

    def as_json(self) -> dict[str, Any]:
        """The `estimate` of a prediction; its keys are stable."""
        return {
            "step_seconds": self.step_seconds,
            "total_seconds": self.total_seconds,
            "interval": list(self.step_interval),
            "total_interval": list(self.total_interval),
            "profile": self.profile.name,
            "extrapolated": list(self.interval.extrapolated),
            **self.step_parts,
        }


def expect(run: PhaseRun, busiest: Ledger) -> PhaseEstimate | None:
    """The estimate of a phase by its cluster's profile; None where it has none."""
    profile = run.setting.cluster.profile
    return None if profile is None else PhaseEstimate(run, busiest, profile)


def estimated_seconds(run: PhaseRun, profile: Profile) -> float:
    """Seconds of the whole phase by any profile, which may be below the bound, as
    `PhaseEstimate.total_seconds` may not."""
    return _as_run(run, profile).total_seconds(EstimateClock(run.setting, profile))


def asked_of(run: PhaseRun) -> Asked:
    """What a phase is, as a profile's region counts it."""
    chunk = run.longest
    return Asked(
        parameters=run.setting.model.parameters,
        chips=run.setting.cluster.chips,
        tokens=run.batch * chunk.queries,
        context=float(chunk.queries if chunk.context is None else chunk.context),
        phase=run.phase,
        layout=str(run.roles),
        weights=run.setting.formats.weights,
        activations=run.setting.formats.activations,
        chip=run.setting.cluster.chip.name,
    )


def _as_run(run: PhaseRun, profile: Profile) -> PhaseRun:
    """The phase with the microbatches of the profile's runtime, where these are known."""
    if profile.microbatch_tokens is None or run.setting.stages == 1:
        return run
    return run.cut(profile.microbatch_tokens)
