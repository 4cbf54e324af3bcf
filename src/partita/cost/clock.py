"""From counts to seconds, in one of two ways that are never mixed: the bound, or the estimate of a profile.

`PhaseRun` asks a clock for the seconds of one microbatch on one stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from partita.cost.bound import bound
from partita.cost.estimate import estimate, sending_seconds
from partita.cost.ledger import Ledger, Number
from partita.cost.setting import Setting, slowest_axis
from partita.specs.profile import Profile


class Clock(Protocol):
    """What times everything in a phase."""

    @property
    def host_seconds(self) -> float:
        """Once a step."""
        ...

    def stage_seconds(self, ledger: Ledger) -> Number:
        """Of one microbatch on one stage."""
        ...

    def hop_seconds(self, sent_bytes: Number) -> Number:
        """Of one microbatch's activations on their way from one stage to the next."""
        ...


@dataclass(frozen=True)
class BoundClock:
    """At peak."""

    setting: Setting
    host_seconds: float = 0.0

    def stage_seconds(self, ledger: Ledger) -> Number:
        return bound(ledger, self.setting.peaks).step_seconds

    def hop_seconds(self, sent_bytes: Number) -> Number:
        return sent_bytes / self.setting.hop_bandwidth


@dataclass(frozen=True)
class EstimateClock:
    """With the efficiencies of a profile."""

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
