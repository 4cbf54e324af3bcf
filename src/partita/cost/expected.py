"""A phase as estimated: seconds of a step and of the whole, each with its interval; and its JSON form.

Knows nothing about the bound beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.cost.clock import EstimateClock
from partita.cost.estimate import Estimate, estimate
from partita.cost.interval import Asked, Interval, interval
from partita.cost.ledger import Ledger
from partita.cost.work import Work
from partita.specs.profile import Profile


@dataclass(frozen=True)
class Expected:
    """`parts`: what a chip of the busiest pipeline stage does in a step; its host time is in no stage."""

    step_seconds: float
    total_seconds: float
    interval: Interval
    profile: Profile
    parts: Estimate

    @property
    def step_interval(self) -> tuple[float, float]:
        """Seconds that a step takes at least and at most, in 90 of 100 cases."""
        return (self.step_seconds * self.interval.low, self.step_seconds * self.interval.high)

    @property
    def total_interval(self) -> tuple[float, float]:
        return (self.total_seconds * self.interval.low, self.total_seconds * self.interval.high)

    def as_json(self) -> dict[str, Any]:
        """The `estimate` of a prediction; its keys are stable."""
        parts = self.parts
        return {
            "step_seconds": self.step_seconds,
            "total_seconds": self.total_seconds,
            "interval": list(self.step_interval),
            "total_interval": list(self.total_interval),
            "profile": self.profile.name,
            "extrapolated": list(self.interval.extrapolated),
            "operation_seconds": float(parts.operation_seconds),
            "communication_seconds": float(parts.communication_seconds),
            "layer_seconds": float(parts.layer_seconds),
            "host_seconds": parts.host_seconds,
        }


def expect(work: Work, busiest: Ledger) -> Expected | None:
    """The estimate of a phase by its cluster's profile; None where it has none."""
    setting = work.setting
    profile = setting.cluster.profile
    if profile is None:
        return None
    clock, turn = EstimateClock(setting, profile), work.longest
    context = turn.queries if turn.context is None else turn.context
    asked = Asked(
        parameters=setting.model.parameters,
        chips=setting.cluster.chips,
        tokens=work.batch * turn.queries,
        context=float(context),
        phase=work.phase,
        layout=f"{work.roles}",
    )
    return Expected(
        step_seconds=work.step_seconds(turn, clock),
        total_seconds=work.total_seconds(clock),
        interval=interval(profile, asked),
        profile=profile,
        parts=estimate(busiest, setting.peaks, profile),
    )
