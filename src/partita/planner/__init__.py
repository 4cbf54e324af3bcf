"""Chooses layouts for a goal from the cost model, and says why. Never imports JAX."""

from partita.planner.plan import (
    OBJECTIVES,
    Objective,
    Pair,
    Plan,
    make_plan,
    make_plan_any_batch,
    parse_objective,
)

__all__ = ["OBJECTIVES", "Objective", "Pair", "Plan", "make_plan", "make_plan_any_batch", "parse_objective"]
