"""Chooses layouts for a goal from the cost model, and says why. Never imports JAX."""

from partita.planner.ask import BATCHES, Ask
from partita.planner.pair import OBJECTIVES, Objective, Pair, parse_objective
from partita.planner.plan import Plan, best_plan, make_plan
from partita.planner.question import Question

__all__ = [
    "BATCHES",
    "OBJECTIVES",
    "Ask",
    "Objective",
    "Pair",
    "Plan",
    "Question",
    "best_plan",
    "make_plan",
    "parse_objective",
]
