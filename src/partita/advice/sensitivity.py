"""What faster links, memory or compute, or more memory, would change: the chosen pair priced on other chips.

Each change is made alone, 10% by default, to every chip and every axis of the fabric. A `choose`
callback tells whether the choice would change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partita.cost.prediction import Setting
from partita.errors import InputError
from partita.planner.pair import Basis
from partita.specs.cluster import Cluster

if TYPE_CHECKING:
    from partita.planner.pair import Objective, Pair

WHAT = {
    "links": "faster links",
    "memory": "faster memory",
    "compute": "more FLOP/s",
    "capacity": "more memory",
}
"""The changes, and how a sentence names them."""


@dataclass(frozen=True)
class Sensitivity:
    """One change, and the objective before and after: seconds, chip-seconds per output token, or tokens.

    They are by the pair's own time, the bound or the estimate; `bound` is the same change by the bound where
    that is not the pair's.
    """

    what: str
    more: float
    """Relative change, 0.1 for 10%."""
    objective: str
    before: float
    after: float
    choice: str | None
    """Prefill's and decode's layouts that would then be chosen; None where that was not asked."""
    changes_choice: bool | None
    after_choosing: float | None
    """The objective of that choice."""
    bound: Sensitivity | None = None

    @property
    def change(self) -> float:
        """Relative change of the objective for the same layouts: -0.04 is 4% less."""
        return self.after / self.before - 1 if self.before else 0.0

    @property
    def elasticity(self) -> float:
        """d log(objective) / d log(change): -1 where the objective is inversely proportional to it."""
        if not (self.before and self.after):
            return 0.0
        return math.log(self.after / self.before) / math.log1p(self.more)

    def __str__(self) -> str:
        text = f"{self.more:.0%} {WHAT[self.what]}: {self.objective} {self._changed(self.change)}"
        if self.changes_choice and self.after_choosing is not None and self.before:
            chosen = self._changed(self.after_choosing / self.before - 1)
            return f"{text}; {self.choice} would be chosen, {chosen}"
        return text + ("; same layouts" if self.changes_choice is False else "")

    def _changed(self, change: float) -> str:
        if abs(change) < 0.0005:
            return "unchanged"
        return f"{abs(change):.1%} {'more' if change > 0 else 'less'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "more": self.more,
            "objective": self.objective,
            "bound": (self.bound or self)._figures(),
            "estimate": self._figures() if self.bound else None,
            "choice": self.choice,
            "changes_choice": self.changes_choice,
        }

    def _figures(self) -> dict[str, float | None]:
        return {
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "elasticity": self.elasticity,
            "after_choosing": self.after_choosing,
        }


def sensitivities(
    pair: Pair,
    objective: Objective,
    *,
    more: float = 0.1,
    what: Sequence[str] = tuple(WHAT),
    choose: Callable[[Setting], Pair] | None = None,
) -> list[Sensitivity]:
    """The objective of the same pair after each change of `what`, one at a time.

    `choose(setting)` searches anew on the changed chips and returns the pair it would take; what that costs
    is the caller's. Memory capacity changes no time of a given pair: only its context, or the choice.
    Raises InputError on `what` where it is none of `WHAT`, on `more` where it is not above zero.
    """
    if not 0 < more < math.inf:
        raise InputError("more", more, "a part above zero is accepted, such as 0.1 for 10%")
    found = []
    for name in what:
        setting = replace(
            pair.decode.setting, cluster=changed_cluster(pair.decode.setting.cluster, name, more)
        )
        other = None if choose is None else choose(setting)
        pairs = (pair, pair.priced_in(setting), other)
        bound = _change(name, more, objective, pairs, "bound")
        found.append(
            bound if pair.basis == "bound" else _change(name, more, objective, pairs, pair.basis, bound)
        )
    return found


def _change(
    what: str,
    more: float,
    objective: Objective,
    pairs: tuple[Pair, Pair, Pair | None],
    basis: Basis,
    bound: Sensitivity | None = None,
) -> Sensitivity:
    """One change by the bound or the estimate: the pair before and after, and what would then be chosen."""
    pair, same, other = pairs
    before, after = (_good(replace(each, basis=basis), objective) for each in (pair, same))
    if other is None:
        return Sensitivity(what, more, objective, before, after, None, None, None, bound)
    choice, chosen = _names(other), _good(replace(other, basis=basis), objective)
    return Sensitivity(what, more, objective, before, after, choice, choice != _names(pair), chosen, bound)


def changed_cluster(cluster: Cluster, what: str, more: float) -> Cluster:
    """The cluster with 1 + `more` times the links, memory bandwidth, peak FLOP/s or memory of each chip."""
    chip, factor = cluster.chip, 1 + more
    if what == "links":
        fabric = tuple(
            axis.model_copy(update={"link_bandwidth": axis.link_bandwidth * factor})
            for axis in cluster.fabric
        )
        return cluster.model_copy(update={"fabric": fabric})
    updates: dict[str, dict[str, Any]] = {
        "memory": {"hbm_bandwidth": chip.hbm_bandwidth * factor},
        "compute": {"peak_flops": {name: peak * factor for name, peak in chip.peak_flops.items()}},
        "capacity": {"hbm_bytes": int(chip.hbm_bytes * factor)},
    }
    if what not in updates:
        raise InputError("what", what, f"accepted are {', '.join(WHAT)}")
    return cluster.model_copy(update={"chip": chip.model_copy(update=updates[what])})


def _good(pair: Pair, objective: Objective) -> float:
    """The objective as people read it: seconds, chip-seconds per output token, or tokens of context."""
    return pair.chip_seconds_per_output_token if objective == "throughput" else abs(pair.score(objective))


def _names(pair: Pair) -> str:
    setting, stages = pair.decode.setting, pair.decode.setting.stages
    staged = f" in {stages} stages" if stages > 1 else ""
    return f"{pair.prefill.layout.roles} and {pair.decode.layout.roles} on {setting.mesh}{staged}"
