"""Continuous batching: requests, slots, blocks and policies; what is simulated is what is served."""

from partita.scheduler.memory import Capacity
from partita.scheduler.policy import POLICIES, Policy, parse_policy
from partita.scheduler.request import Request, Sequence
from partita.scheduler.scheduler import Pace, Scheduler
from partita.scheduler.step import Read, Step
from partita.scheduler.switching import Switching

__all__ = [
    "POLICIES",
    "Capacity",
    "Pace",
    "Policy",
    "Read",
    "Request",
    "Scheduler",
    "Sequence",
    "Step",
    "Switching",
    "parse_policy",
]
