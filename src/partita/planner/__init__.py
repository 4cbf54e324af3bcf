"""Chooses layouts for a goal from the cost model, and says why. Never imports JAX."""

from partita.planner.pair import OBJECTIVES, Objective, Pair, parse_objective
from partita.planner.plan import Plan, best_of, best_plan, make_plan
from partita.planner.request import BATCHES, Case, PlanRequest

__all__ = [
    "BATCHES",
    "OBJECTIVES",
    "Case",
    "Objective",
    "Pair",
    "Plan",
    "PlanRequest",
    "best_of",
    "best_plan",
    "make_plan",
    "parse_objective",
]
