"""The plan: the best pair of layouts for a goal, what it beats, and why.

The search is exhaustive over the space of `space.py`; both phases share one storage of the weights, so a pair
is priced as it would run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as every
from typing import Any

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.frontier import Point, frontier
from partita.planner.infeasible import live_memory, no_plan
from partita.planner.model_limits import Caution, cautions, check_positions, longest_context
from partita.planner.pair import Basis, Objective, Pair
from partita.planner.request import Case, PlanRequest
from partita.planner.saved import SCHEMA, setting_as_json
from partita.planner.search import ALIKE, Searched, search
from partita.planner.space import all_axes
from partita.planner.tables import COARSE_CELLS, MOST_CELLS, NEAR, Tables
from partita.planner.why import about_the_estimate, reasons
from partita.sharding.mesh import Mesh
from partita.sharding.roles import ATTENTION_NAMES, FFN_NAMES, parse_roles

_MANY = 4
"""Cases that are all searched closely; of more, as many as did best in a first look."""


@dataclass(frozen=True)
class Plan:
    """The chosen pair, the others from best to worst, and why."""

    objective: Objective
    chosen: Pair
    runners_up: tuple[Pair, ...]
    reasons: tuple[str, ...]
    tables: tuple[Tables, ...] = ()
    named: tuple[Pair, ...] = ()
    """The paper's layouts on the same chips, the same in both phases: what the reasons compare with."""

    @property
    def ranked_by(self) -> Basis:
        """What times and costs of the plan are: bounds or estimates."""
        return self.chosen.basis

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What is to be said of the model at the lengths that were asked for."""
        setting = self.decode.setting
        return cautions(setting.model, setting.workload)

    @property
    def prefill(self) -> Prediction:
        return self.chosen.prefill

    @property
    def decode(self) -> Prediction:
        return self.chosen.decode

    def predictions(self) -> tuple[Prediction, Prediction]:
        """Prefill and decode."""
        return self.prefill, self.decode

    @cached_property
    def frontier(self) -> tuple[Point, ...]:
        """The layouts that nothing else priced beats in both time and cost."""
        return frontier(self.tables)

    @property
    def configurations(self) -> int:
        """Layouts at a batch that were priced."""
        return sum(table.configurations for table in self.tables)

    @property
    def space(self) -> dict[str, Any]:
        """Whether every layout was priced on the chosen chips, or only those of so many mesh axes a phase."""
        setting = self.decode.setting
        asked = (setting.cluster, setting.formats, setting.stages)
        for each in self.tables:
            case = each.case
            if (case.cluster, case.formats, case.stages) == asked:
                axes = {phase: getattr(each, phase).axes for phase in ("prefill", "decode")}
                every = all_axes(case.topology)
                return {"complete": min(axes.values()) >= every, "all_axes": every, "axes": axes}
        return {}

    def losses(self) -> list[dict[str, Any]]:
        """Each runner-up in brief, and by how much it loses."""
        return [_brief(pair, self) for pair in self.runners_up]

    def explain(self) -> str:
        """Why these layouts, a line for each reason."""
        return "\n".join(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON, with stable keys; `plan --json` prints it with what `advice` has to say."""
        setting = self.decode.setting
        return {
            "schema": SCHEMA,
            "objective": self.objective,
            "ranked_by": self.ranked_by,
            "setting": setting_as_json(setting),
            "prefill": self.prefill.as_json(),
            "decode": self.decode.as_json(),
            "switch": _reshard(self.chosen),
            "memory": memory_as_json(self.chosen),
            "latency_seconds": self.chosen.latency_seconds,
            "chip_seconds_per_output_token": self.chosen.chip_seconds_per_output_token,
            "runners_up": self.losses(),
            "frontier": [point.as_json() for point in self.frontier],
            "cautions": [caution.as_json() for caution in self.cautions],
            "configurations": self.configurations,
            "space": self.space,
            "reasons": list(self.reasons),
        }


def memory_as_json(pair: Pair) -> dict[str, Any]:
    """The account of a chip's memory over time, and how much more would fit."""
    setting, (fullest, _) = pair.decode.setting, pair.fullest
    return {
        "utilization": setting.memory_utilization,
        "chip_bytes": setting.cluster.chip.hbm_bytes,
        "moments": {
            moment: live_memory(live, setting.capacity_bytes) for moment, live in pair.memory.items()
        },
        "fullest": fullest,
        "max_batch": pair.max_batch,
        "max_context": pair.max_context,
        "longest_context": longest_context(setting.model, pair.max_context, setting.workload),
    }


def _reshard(pair: Pair) -> dict[str, Any]:
    """Seconds of moving the prompts' keys and values between the layouts, as the plan's JSON has them."""
    found: dict[str, Any] = {
        "bound": {"seconds": replace(pair, basis="bound").reshard_seconds},
        "estimate": None,
    }
    if pair.decode.setting.cluster.profile is not None:
        found["estimate"] = {"seconds": replace(pair, basis="estimate").reshard_seconds}
    return found


def _brief(pair: Pair, plan: Plan) -> dict[str, Any]:
    best = plan.chosen.score(plan.objective)
    return {
        "prefill": str(pair.prefill.layout.roles),
        "decode": str(pair.decode.layout.roles),
        "cluster": pair.decode.setting.cluster.name,
        "mesh": pair.decode.setting.mesh.size,
        "batch": pair.decode.batch,
        "prefill_batch": pair.prefill.batch,
        "latency_seconds": pair.latency_seconds,
        "chip_seconds_per_output_token": pair.chip_seconds_per_output_token,
        "loses_by": _loss(pair.score(plan.objective), best),
    }


def _loss(score: float, best: float) -> float:
    """The share of the best score by which a score is above it; below it by rounding counts as equal."""
    loss = (score - best) / abs(best) if best else 0.0
    return 0.0 if abs(loss) < NEAR else loss


def make_plan(
    setting: Setting,
    objective: Objective = "latency",
    *,
    max_ttft: float | None = None,
    max_tpot: float | None = None,
    basis: Basis | None = None,
    top: int = 5,
) -> Plan:
    """The best pair of layouts in a setting, at its batch; arguments as fields of `PlanRequest`."""
    request = PlanRequest.of(setting, objective, basis)
    return best_plan(replace(request, max_ttft=max_ttft, max_tpot=max_tpot, top=top))


def best_plan(request: PlanRequest, progress: Callable[[Case], None] | None = None) -> Plan:
    """The best pair of layouts that a request leaves to choose from; `progress` is called before each case.

    `request.top` pairs are listed, the chosen one among them. Raises InputError where nothing fits (with the
    smallest change that would), where nothing keeps the limits, for a `top` below 1, and as
    `PlanRequest.cases` does.
    """
    return best_of(request.cases(), request.top, progress)


def best_of(cases: Sequence[Case], top: int = 5, progress: Callable[[Case], None] | None = None) -> Plan:
    """The best pair of layouts over all cases, each over its batches and layouts; errors as in `best_plan`.

    The cases are of one request, or of several with the same objective, basis and limits.
    """
    if top < 1:
        raise InputError("top", top, "1 or more are accepted")
    for case in cases:
        _check(case)
    objective, basis = cases[0].request.objective, cases[0].ranked_by
    many = len(cases) > _MANY
    searched: list[Searched] = []
    for case in cases:
        if progress is not None:
            progress(case)
        # what cannot come among the best of those before need not be priced exactly
        scores = sorted(pair.score(objective) for each in searched for pair in each.pairs)
        beat = scores[top - 1] if len(scores) >= top else math.inf
        searched.append(search(case, top, COARSE_CELLS if many else MOST_CELLS, beat))
    if many:  # look closely at those that did best at first sight, or at all where none has a plan
        order = sorted(
            range(len(cases)),
            key=lambda i: rank(searched[i].pairs[0], cases[i]) if searched[i].pairs else (math.inf,),
        )
        for i in order[:_MANY] if any(each.pairs for each in searched) else order:
            searched[i] = search(cases[i], top, MOST_CELLS // 2)
    tables = [each.tables for each in searched]
    if not any(each.pairs for each in searched):
        raise no_plan(tables)
    found = [(rank(pair, each.case), pair) for each in searched for pair in each.pairs]
    found.sort(key=lambda entry: entry[0])  # of equals, chips and stages asked for first
    chosen = simplest(found)
    ranked = [chosen, *(pair for _, pair in found if pair is not chosen)]
    named = named_pairs(replace(chosen.decode.setting, mesh=_plain_mesh(chosen, cases)), basis)
    of_chosen = next(each.case for each in searched if any(pair is chosen for pair in each.pairs))
    why = (*reasons(objective, chosen, named, of_chosen), *about_the_estimate(chosen, cases))
    return Plan(objective, chosen, tuple(ranked[1:top]), why, tuple(tables), tuple(named))


def rank(pair: Pair, case: Case) -> tuple[float, ...]:
    """What is minimised over all cases, the most important first.

    At a given rate chips are paid whether busy or not, so of those that sustain it the fewest cost least.
    """
    score = float(f"{pair.score(case.request.objective):.9g}")
    paid = case.request.rate is not None and case.request.objective == "cost"
    return (float(case.cluster.chips), score) if paid else (score,)


def simplest(found: Sequence[tuple[tuple[float, ...], Pair]]) -> Pair:
    """The simplest of the ranked pairs `ALIKE` to the first: in layouts of the paper, with fewest axes."""

    def plain(entry: tuple[tuple[float, ...], Pair]) -> tuple[int, int, bool, float]:
        pair = entry[1]
        written = sum("=" in str(phase.layout.roles) for phase in (pair.prefill, pair.decode))
        chunked = pair.decode.setting.workload.chunk is not None
        return written, len(pair.decode.setting.mesh.axes), chunked, pair.latency_seconds

    first = found[0][0]
    near = [e for e in found if e[0][:-1] == first[:-1] and e[0][-1] <= first[-1] + abs(first[-1]) * ALIKE]
    return min(near, key=plain)[1]


def _check(case: Case) -> None:
    workload = case.workload
    check_positions(case.model, workload)
    if workload.context < workload.prompt + workload.output:
        raise InputError(
            "context",
            workload.context,
            f"the cache must hold prompt and output, {workload.prompt + workload.output} tokens or more",
        )


def _plain_mesh(chosen: Pair, cases: Sequence[Case]) -> Mesh:
    """The mesh that the paper's named layouts are compared on: the user's, else that of the machine."""
    setting = chosen.decode.setting
    case = next(case for case in cases if case.cluster == setting.cluster)
    return case.request.mesh or Mesh.of(setting.stage_cluster.shape)


def named_pairs(setting: Setting, basis: Basis) -> list[Pair]:
    """The named layouts on the setting's mesh, both phases in the same one."""
    axes = setting.mesh.axes
    named = [parse_roles(ffn, attention, axes) for ffn, attention in every(FFN_NAMES, ATTENTION_NAMES)]
    return [Pair(predict(setting, "prefill", r), predict(setting, "decode", r), basis) for r in named]
