"""The planner: prices every layout of the paper for both phases and picks the best pair.

Both phases share one storage of the weights, which decode decides; so a pair is priced as it would run.
Exhaustive over the named layouts on a given mesh and batch; knows nothing about JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product as every
from typing import Any, Literal

from partita.cost.prediction import Phase, Prediction, Setting, predict, switch_seconds
from partita.errors import InputError
from partita.planner.fit import smallest_change
from partita.planner.reasons import reasons
from partita.planner.saved import SCHEMA, setting_as_json
from partita.sharding.layout import Storage, plan_storage
from partita.sharding.roles import ATTENTION_NAMES, FFN_NAMES, Roles, parse_roles
from partita.specs.units import format_bytes, format_seconds
from partita.specs.workload import Workload

Objective = Literal["latency", "cost", "throughput", "context"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "cost", "throughput", "context")
BATCHES = tuple(2**i for i in range(11))
"""Batches tried where the batch is left to the planner."""


def parse_objective(text: str) -> Objective:
    """Raises InputError (field "objective") where it is none of `OBJECTIVES`."""
    if text not in OBJECTIVES:
        raise InputError("objective", text, f"accepted are {', '.join(OBJECTIVES)}")
    return text


@dataclass(frozen=True)
class Pair:
    """One layout for each phase on one storage, priced."""

    prefill: Prediction
    decode: Prediction

    @property
    def switch_seconds(self) -> float:
        """Bound of moving the prompts' keys and values between the layouts, once per prefill."""
        return switch_seconds(self.prefill, self.decode)

    @property
    def prefill_seconds(self) -> float:
        """Until the whole decode batch has its prompts read: as many prefills as that takes."""
        rounds = -(-self.decode.batch // self.prefill.batch)
        return rounds * (self.prefill.total_seconds + self.switch_seconds)

    @property
    def latency_seconds(self) -> float:
        """Of one request: its prefill, then all decode steps."""
        return self.prefill.total_seconds + self.switch_seconds + self.decode.total_seconds

    @property
    def chip_seconds_per_output_token(self) -> float:
        """Chip-seconds of both phases over the tokens generated."""
        workload = self.decode.setting.workload
        chips = self.decode.setting.cluster.chips
        seconds = self.prefill_seconds + self.decode.total_seconds
        return chips * seconds / (workload.batch * workload.output)

    def score(self, objective: Objective) -> float:
        """What the objective minimises."""
        if objective == "latency":
            return self.latency_seconds
        if objective == "context":
            return -float(self.decode.max_context)
        return self.chip_seconds_per_output_token  # on given chips, cost and throughput are one

    @property
    def fits(self) -> bool:
        return self.prefill.fits and self.decode.fits


@dataclass(frozen=True)
class Plan:
    """The chosen pair, the others from best to worst, and why."""

    objective: Objective
    chosen: Pair
    runners_up: tuple[Pair, ...]
    reasons: tuple[str, ...]

    @property
    def prefill(self) -> Prediction:
        return self.chosen.prefill

    @property
    def decode(self) -> Prediction:
        return self.chosen.decode

    def explain(self) -> str:
        """Why these layouts, a line for each reason."""
        return "\n".join(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """The object `plan --json` prints; its keys are stable."""
        setting = self.decode.setting
        return {
            "schema": SCHEMA,
            "objective": self.objective,
            "setting": setting_as_json(setting),
            "prefill": self.prefill.as_json(),
            "decode": self.decode.as_json(),
            "switch": {"bound": {"seconds": self.chosen.switch_seconds}},
            "latency_seconds": self.chosen.latency_seconds,
            "chip_seconds_per_output_token": self.chosen.chip_seconds_per_output_token,
            "runners_up": [_brief(pair, self) for pair in self.runners_up],
            "frontier": [],
            "reasons": list(self.reasons),
        }


def _brief(pair: Pair, plan: Plan) -> dict[str, Any]:
    best = plan.chosen.score(plan.objective)
    return {
        "prefill": str(pair.prefill.layout.roles),
        "decode": str(pair.decode.layout.roles),
        "latency_seconds": pair.latency_seconds,
        "chip_seconds_per_output_token": pair.chip_seconds_per_output_token,
        "loses_by": pair.score(plan.objective) / best - 1 if best else 0.0,
    }


def make_plan(
    setting: Setting,
    objective: Objective = "latency",
    *,
    max_ttft: float | None = None,
    max_tpot: float | None = None,
    top: int = 5,
) -> Plan:
    """The best pair of named layouts that fits, by the bound.

    `max_ttft` and `max_tpot` are limits in seconds on the prefill and on one decode step; `top` pairs are
    listed, the chosen one among them. Raises InputError where nothing fits (with the smallest change that
    would) or nothing keeps the limits, and for a `top` below 1.
    """
    found = _attempt(setting, objective, max_ttft, max_tpot, top)
    if isinstance(found, Plan):
        return found
    raise found()


def _attempt(
    setting: Setting, objective: Objective, max_ttft: float | None, max_tpot: float | None, top: int
) -> Plan | Callable[[], InputError]:
    """The plan, or what makes the error that says why there is none: its advice takes a search of its own."""
    workload = setting.workload
    if workload.context < workload.prompt + workload.output:
        raise InputError(
            "context",
            workload.context,
            f"the cache must hold prompt and output, {workload.prompt + workload.output} tokens or more",
        )
    if top < 1:
        raise InputError("top", top, "1 or more are accepted")
    pairs = list(_pairs(setting))
    fitting = [pair for pair in pairs if pair.fits]
    if not fitting:
        return lambda: does_not_fit(min(pairs, key=_excess_bytes))
    kept = [
        pair
        for pair in fitting
        if (max_ttft is None or pair.prefill.total_seconds <= max_ttft)
        and (max_tpot is None or pair.decode.step_seconds <= max_tpot)
    ]
    if not kept:
        return lambda: _too_slow(fitting, max_ttft, max_tpot)
    # of equals the first named wins: the order is the paper's, simplest first
    ranked = sorted(kept, key=lambda pair: pair.score(objective))
    chosen, others = ranked[0], tuple(ranked[1:top])
    return Plan(objective, chosen, others, tuple(reasons(objective, chosen, pairs)))


def make_plan_any_batch(
    setting: Setting,
    objective: Objective = "latency",
    *,
    max_ttft: float | None = None,
    max_tpot: float | None = None,
    top: int = 5,
) -> Plan:
    """The best plan over the batches of `BATCHES`, each prefilled whole; limits as in `make_plan`.

    Batches that do not fit or break a limit are passed over; raises InputError where all do.
    """
    plans: list[Plan] = []
    refused: list[Callable[[], InputError]] = []
    # no larger batch has a lower latency or a longer context
    for batch in BATCHES[:1] if objective in ("latency", "context") else BATCHES:
        workload = setting.workload
        tried = Workload(
            prompt=workload.prompt, output=workload.output, batch=batch, context=workload.context
        )
        found = _attempt(replace(setting, workload=tried), objective, max_ttft, max_tpot, top)
        if isinstance(found, Plan):
            plans.append(found)
        else:
            refused.append(found)
    if not plans:
        raise refused[0]()
    return min(plans, key=lambda plan: plan.chosen.score(objective))


def _pairs(setting: Setting) -> Iterator[Pair]:
    """Every pair of named layouts; a phase is priced once for each storage it can share."""
    axes = setting.mesh.axes
    named = [parse_roles(ffn, attention, axes) for ffn, attention in every(FFN_NAMES, ATTENTION_NAMES)]
    priced: dict[tuple[Phase, Roles, Storage], Prediction] = {}

    def price(phase: Phase, roles: Roles, storage: Storage) -> Prediction:
        key = (phase, roles, storage)
        if key not in priced:
            priced[key] = predict(setting, phase, roles, storage)
        return priced[key]

    for decode, prefill in every(named, named):
        storage = plan_storage(setting.model, setting.mesh, decode, prefill)
        yield Pair(price("prefill", prefill, storage), price("decode", decode, storage))


def _excess_bytes(pair: Pair) -> int:
    return max(pair.prefill.memory_bytes["total"], pair.decode.memory_bytes["total"])


def does_not_fit(pair: Pair) -> InputError:
    """The error for the pair that comes nearest: bytes by part and the smallest change that would fit."""
    worst = max((pair.prefill, pair.decode), key=lambda p: p.memory_bytes["total"])
    return too_large(worst, lambda setting: any(other.fits for other in _pairs(setting)))


def too_large(prediction: Prediction, fits: Any) -> InputError:
    """The error for a phase that does not fit; `fits(setting)` tells whether a changed setting does."""
    memory, setting = prediction.memory_bytes, prediction.setting
    parts = " + ".join(f"{part} {format_bytes(memory[part])}" for part in ("weights", "kv", "activations"))
    return InputError(
        "cluster",
        setting.cluster.name,
        f"{setting.model.name} does not fit: {prediction.phase} in {prediction.layout.roles} needs {parts} "
        f"= {format_bytes(memory['total'])} of {format_bytes(memory['capacity'])} per chip; "
        f"{smallest_change(setting, fits)}",
    )


def alone_fits(prediction: Prediction) -> None:
    """Raises InputError, with the smallest change that would help, where a single phase does not fit."""
    if not prediction.fits:
        roles = prediction.layout.roles
        raise too_large(prediction, lambda setting: predict(setting, prediction.phase, roles).fits)


def _too_slow(pairs: list[Pair], max_ttft: float | None, max_tpot: float | None) -> InputError:
    ttft = min(pair.prefill.total_seconds for pair in pairs)
    tpot = min(pair.decode.step_seconds for pair in pairs)
    if max_ttft is not None and ttft > max_ttft:
        field, value, best = "max_ttft", max_ttft, f"the fastest prefill's bound is {format_seconds(ttft)}"
    elif max_tpot is not None and tpot > max_tpot:
        field, value, best = (
            "max_tpot",
            max_tpot,
            f"the fastest decode step's bound is {format_seconds(tpot)}",
        )
    else:  # each limit is kept by some pair, so both were given
        field, value = "max_tpot", max_tpot
        best = f"no pair of layouts keeps it and the max_ttft of {format_seconds(max_ttft or 0.0)}"
    return InputError(field, format_seconds(value or 0.0), f"no layout keeps this limit: {best}")
