"""The analyses of a plan: its rules, crossovers, sensitivities, server and other engines' flags.

Each is computed when it is first used; together with the plan they are one JSON document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from partita.advice.compare import compare
from partita.advice.crossover import Crossover, crossovers
from partita.advice.jax_engines import other_engines_json
from partita.advice.rule import Rule
from partita.advice.rules import broken_rules
from partita.advice.sensitivity import Sensitivity, sensitivities
from partita.advice.simulated import simulated
from partita.cost.prediction import Prediction
from partita.cost.setting import Setting
from partita.planner.disaggregation import DisaggregatedPlan
from partita.planner.drafting import DraftedStep, drafted_steps
from partita.planner.pair import Pair
from partita.planner.plan import Plan
from partita.planner.saved import SavedPlan
from partita.planner.serving import Server, server
from partita.simulation.result import Result
from partita.specs.drafts import DraftRequest
from partita.specs.traffic import Traffic

_RIVALS = 12
"""Layouts of each phase that crossovers are looked for with."""


@dataclass(frozen=True)
class Advice:
    """The analyses of one plan.

    traffic: the requests it is for, where they are not all alike. rate: prompts per second. price: the price
    of a chip-hour, in the user's currency. draft: drafts to price decode with.
    """

    plan: Plan
    traffic: Traffic | None = None
    rate: float | None = None
    price: float | None = None
    draft: DraftRequest | None = None

    @cached_property
    def drafted(self) -> tuple[DraftedStep, ...]:
        """Decode with the drafts that are asked for."""
        return () if self.draft is None else drafted_steps(self.plan.chosen, self.draft)

    @cached_property
    def rules(self) -> dict[str, list[Rule]]:
        """Every rule that each phase's layout breaks or bends."""
        basis = self.plan.ranked_by
        return {phase: broken_rules(getattr(self.plan, phase), basis) for phase in ("prefill", "decode")}

    @cached_property
    def crossovers(self) -> list[Crossover]:
        """The nearest batch, context and prompt at which each phase would have another layout."""
        found: list[Crossover] = []
        for chosen in (self.plan.prefill, self.plan.decode):
            rivals = list(self._rivals(chosen))
            found += crossovers(chosen, rivals, evaluations=40, basis=self.plan.ranked_by)
        return found

    @cached_property
    def sensitivities(self) -> list[Sensitivity]:
        """What 10% faster links, memory or compute, or more memory, would do to the objective."""
        return sensitivities(self.plan.chosen, self.plan.objective, choose=self._choose)

    def _choose(self, changed: Setting) -> Pair:
        """The best on changed chips of the pairs that the plan lists."""
        found = []
        for pair in (self.plan.chosen, *self.plan.runners_up):
            if pair.decode.setting.cluster != self.plan.decode.setting.cluster:
                continue
            found.append(pair.priced_in(replace(pair.decode.setting, cluster=changed.cluster)))
        return min(found, key=lambda pair: (not pair.fits, pair.score(self.plan.objective)))

    @cached_property
    def other_engines(self) -> dict[str, Any]:
        """The plan as the configuration of other engines."""
        return other_engines_json(self.plan.chosen)

    @cached_property
    def server(self) -> Server:
        """The plan under a steady load of its traffic."""
        return server(self.plan.chosen, self.traffic)

    @cached_property
    def simulated(self) -> Result | None:
        """What users see at the rate; None without one, and where it is not simulated."""
        return None if self.rate is None else simulated(self.plan.chosen, self.traffic, self.rate)

    def as_json(
        self,
        disaggregated: DisaggregatedPlan | None = None,
        other: SavedPlan | None = None,
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The object `plan --json` prints, with disaggregated pools or a comparison where given.

        Its keys are stable; `load_plan` reads the plan out of it.
        """
        return self.plan.as_json() | {
            "rules": {phase: [rule.as_json() for rule in found] for phase, found in self.rules.items()},
            "crossovers": [crossing.as_json() for crossing in self.crossovers],
            "sensitivity": [each.as_json() for each in self.sensitivities],
            "other_engines": self.other_engines,
            "server": self._server_as_json(),
            "simulation": None if self.simulated is None else self.simulated.summary(),
            "traffic": None if self.traffic is None else self.traffic.as_json(),
            "drafts": None if self.draft is None else [step.as_json() for step in self.drafted],
            "disaggregated": None
            if disaggregated is None
            else disaggregated.as_json() | {"warnings": list(warnings)},
            "comparison": None if other is None else compare(self.plan, other).as_json(),
        }

    def _server_as_json(self) -> dict[str, Any]:
        found = self.server.as_json(self.rate, self.price)
        if self.rate is not None:
            found["prefill_fill_seconds"] = self.plan.chosen.fill_seconds(self.rate)
        return found

    def _rivals(self, chosen: Prediction) -> Iterator[Prediction]:
        """Other layouts of a phase on the same chips: the paper's, the runners-up and the frontier's."""
        setting, seen = chosen.setting, {(chosen.setting.mesh, chosen.layout.roles)}
        pairs = [*self.plan.runners_up, *self.plan.named]
        found = [getattr(pair, chosen.phase) for pair in pairs]
        found += [p.prediction for p in self.plan.frontier if p.prediction.phase == chosen.phase]
        for other in found:
            key = (other.setting.mesh, other.layout.roles)
            alike = (other.setting.cluster, other.setting.formats, other.setting.stages)
            if key in seen or alike != (setting.cluster, setting.formats, setting.stages):
                continue
            seen.add(key)
            if len(seen) > _RIVALS + 1:
                return
            yield other.priced_in(replace(other.setting, workload=setting.workload))
