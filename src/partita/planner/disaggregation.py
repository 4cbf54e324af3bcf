"""Disaggregation: prefill and decode on chips of their own, each pool with its own copies of the weights.

A pool is a number of equal units, each a cluster in one layout; keys and values of every prompt cross from
one pool to the other. Pool sizes are balanced to the traffic: both take requests at one rate. Queues are
not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.cost.estimate import sending_seconds
from partita.cost.prediction import Prediction
from partita.errors import InputError
from partita.planner.exact import Exact
from partita.planner.pair import BASES, Basis, basis_of, prompts_of, step_seconds, total_seconds
from partita.planner.request import Case, PlanRequest
from partita.planner.tables import Tables, price, with_portions
from partita.specs.cluster import Cluster
from partita.specs.formats import BYTES
from partita.specs.profile import Phase
from partita.specs.units import format_range, format_seconds


@dataclass(frozen=True)
class Unit:
    """One cluster in one layout for one phase. rate: prompts per second it takes, as bounded or estimated."""

    prediction: Prediction
    rate: float
    basis: Basis = "bound"

    @property
    def chips(self) -> int:
        return self.prediction.setting.cluster.chips


@dataclass(frozen=True)
class Transfer:
    """Bytes that cross between the pools, and the seconds it takes: at least, and as estimated."""

    bytes: float
    bound_seconds: float
    estimated_seconds: float | None

    def seconds(self, basis: Basis) -> float:
        estimated = None if basis == "bound" else self.estimated_seconds
        return self.bound_seconds if estimated is None else estimated

    def as_json(self) -> dict[str, Any]:
        estimated = None if self.estimated_seconds is None else {"seconds": self.estimated_seconds}
        return {"bytes": self.bytes, "bound": {"seconds": self.bound_seconds}, "estimate": estimated}


@dataclass(frozen=True)
class DisaggregatedPlan:
    """The balanced pair of pools, by the bound or the estimate as their units are.

    transfer: the keys and values of one prefill, from one pool to the other.
    """

    prefill: Unit
    decode: Unit
    prefill_units: int
    decode_units: int
    transfer: Transfer

    @property
    def transfer_seconds(self) -> float:
        return self.transfer.seconds(self.decode.basis)

    @property
    def transfer_bytes(self) -> float:
        return self.transfer.bytes

    @property
    def chips(self) -> int:
        return self.prefill_units * self.prefill.chips + self.decode_units * self.decode.chips

    @property
    def prompts_per_second(self) -> float:
        """The most that both pools sustain: what the slower one takes or the links carry."""
        crossing = self.prefill_units * self.prefill.prediction.batch / self.transfer_seconds
        return min(self.prefill_units * self.prefill.rate, self.decode_units * self.decode.rate, crossing)

    @property
    def output_tokens_per_second(self) -> float:
        workload = self.decode.prediction.setting.workload
        return self.prompts_per_second * workload.samples * workload.output

    @property
    def chip_seconds_per_output_token(self) -> float:
        return self.chips / self.output_tokens_per_second

    @property
    def ttft_seconds(self) -> float:
        """One prefill, whose logits give the first token before the keys and values travel."""
        return total_seconds(self.prefill.prediction, self.prefill.basis)

    def fill_seconds(self, rate: float) -> float:
        """Seconds that the first prompt of a prefill batch waits for the last one, where `rate` prompts come
        in a second and every unit takes its share."""
        return (self.prefill.prediction.batch - 1) * self.prefill_units / rate

    @property
    def latency_seconds(self) -> float:
        """Seconds of one request: its prefill, the transfer, then all decode steps."""
        decode = total_seconds(self.decode.prediction, self.decode.basis)
        return self.ttft_seconds + self.transfer_seconds + decode

    def as_json(self) -> dict[str, Any]:
        pools = {
            name: {"units": count, "chips_a_unit": unit.chips, "prompts_per_second_a_unit": unit.rate}
            | {"prediction": unit.prediction.as_json()}
            for name, count, unit in (
                ("prefill", self.prefill_units, self.prefill),
                ("decode", self.decode_units, self.decode),
            )
        }
        return pools | {
            "chips": self.chips,
            "ranked_by": self.decode.basis,
            "transfer": self.transfer.as_json(),
            "prompts_per_second": self.prompts_per_second,
            "output_tokens_per_second": self.output_tokens_per_second,
            "chip_seconds_per_output_token": self.chip_seconds_per_output_token,
            "latency_seconds": self.latency_seconds,
            "ttft_seconds": self.ttft_seconds,
        }


def plan_disaggregated(
    request: PlanRequest, clusters: Sequence[Cluster], max_chips: int
) -> DisaggregatedPlan:
    """The cheapest pools whose units are of these clusters, at the batches and chunks that are given or else
    at any; no unit is a pipeline.

    Errors as those of `best_pools` and `PlanRequest.cases`.
    """
    units = replace(
        request,
        clusters=tuple(clusters),
        objective="cost",
        stages=1,
        mesh=None,
        rate=None,
        basis=basis_of(clusters, request.basis),
    )
    return best_pools([_priced(case) for case in units.cases()], max_chips, request.rate)


def _priced(case: Case) -> Tables:
    """Prompts are read in chunks where they do not fit whole, or as that is asked for."""
    whole = tuple(portion for portion in case.portions if portion.chunk is None)
    tables = price(case, portions=whole or case.portions)
    if whole and not tables.prefill_fits.any():
        chunked = [portion for portion in case.portions if portion.chunk is not None]
        tables = with_portions(tables, chunked) if chunked else tables
    return tables


def warnings(pools: DisaggregatedPlan, request: PlanRequest) -> list[str]:
    """What the pools' own estimates say against limits that their bounds keep, and how long a prefill batch
    takes to fill."""
    found = []
    prefill, decode = pools.prefill.prediction, pools.decode.prediction
    if request.rate is not None and prefill.batch > 1:
        found.append(
            f"at {request.rate:.3g} prompts/s the first prompt of a prefill batch of {prefill.batch} waits "
            f"{format_seconds(pools.fill_seconds(request.rate))} for the last"
        )
    if pools.decode.basis != "bound" or prefill.estimate is None or decode.estimate is None:
        return found
    instead = "which the bound meets; --by estimate plans by the estimate"
    ttft, tpot = prefill.estimate.total_seconds, decode.estimate.step_seconds
    wait = 0.0 if request.rate is None else pools.fill_seconds(request.rate)
    if request.max_ttft is not None and ttft + wait > request.max_ttft:
        range_ = format_range(ttft, prefill.estimate.total_interval)
        limit = format_seconds(request.max_ttft)
        found.append(
            f"prefill pool: estimated {range_} to the first token, over --max-ttft {limit}, {instead}"
        )
    if request.max_tpot is not None and tpot > request.max_tpot:
        range_ = format_range(tpot, decode.estimate.step_interval)
        limit = format_seconds(request.max_tpot)
        found.append(f"decode pool: estimated {range_} a step, over --max-tpot {limit}, {instead}")
    if request.rate is not None:
        rates = []
        for count, unit in ((pools.prefill_units, pools.prefill), (pools.decode_units, pools.decode)):
            bound, estimated = (total_seconds(unit.prediction, basis) for basis in BASES)
            rates.append(count * unit.rate * bound / estimated)
        if min(rates) < request.rate:
            below = f"{min(rates):.3g} prompts/s, below --rate {request.rate:.3g}/s"
            found.append(f"pools: estimated to take {below}, {instead}")
    return found


def best_pools(tables: Sequence[Tables], max_chips: int, rate: float | None = None) -> DisaggregatedPlan:
    """The cheapest pools of at most `max_chips` chips that keep the limits; `tables` are the units there are.

    `rate`: prompts per second that they must take. Raises InputError where no unit of a phase fits or keeps
    its limit, both do not fit `max_chips`, or no pools take the rate.
    """
    units = {phase: _units(tables, phase, rate) for phase in ("prefill", "decode")}
    best: tuple[float, DisaggregatedPlan] | None = None
    most, late = 0.0, math.inf
    for prefill in units["prefill"]:
        for decode in units["decode"]:
            for pools in _balanced(tables, prefill, decode, max_chips):
                most = max(most, pools.prompts_per_second)
                if rate is not None and pools.prompts_per_second < rate:
                    continue
                if not _first_token_in_time(pools, tables[0].case.request.max_ttft, rate):
                    late = min(late, pools.ttft_seconds + pools.fill_seconds(rate or math.inf))
                    continue
                cost = pools.chip_seconds_per_output_token
                if best is None or cost < best[0] * (1 - 1e-9):
                    best = (cost, pools)
    if best is None and late < math.inf:
        limit = format_seconds(tables[0].case.request.max_ttft or 0.0)
        soonest = f"at this rate a prefill batch that fills and is read takes {format_seconds(late)}"
        raise InputError("max_ttft", limit, f"no pools meet it: {soonest}")
    if best is None and most and rate is not None:
        raise InputError("rate", f"{rate:.6g}/s", f"no pools of these chips sustain it: at most {most:.3g}/s")
    if best is None:
        least = sum(min(unit.chips for unit in units[phase]) for phase in units)
        raise InputError("cluster", f"{max_chips} chips", f"two pools need at least {least} chips here")
    return best[1]


def _first_token_in_time(pools: DisaggregatedPlan, limit: float | None, rate: float | None) -> bool:
    """Whether the first prompt of a prefill batch, which waits for the others, is read within the limit."""
    if limit is None or rate is None:
        return True
    return pools.ttft_seconds + pools.fill_seconds(rate) <= limit


def _units(tables: Sequence[Tables], phase: Phase, rate: float | None = None) -> list[Unit]:
    """The unit of every cluster that takes most prompts a second, unless a smaller one beats it per chip.

    `rate`: prompts per second of all units; at best all fill the batches of one.
    """
    found: list[Unit] = []
    fastest, basis = np.inf, tables[0].case.ranked_by
    # of many units each fills its batches more slowly, so that smaller batches may keep a limit
    filling = phase == "prefill" and rate is not None and tables[0].case.request.max_ttft is not None
    for each in sorted(tables, key=lambda table: table.case.cluster.chips):
        case, workload = each.case, each.case.workload
        if phase == "prefill":
            seconds, fits, limit = each.prefill_seconds, each.prefill_fits, case.request.max_ttft
            prompts = np.array([portion.batch for portion in each.portions], dtype=float)
            limited = seconds if rate is None else seconds + (prompts - 1) / rate
        else:
            seconds, fits, limit = each.decode_seconds, each.decode_fits, case.request.max_tpot
            prompts = np.array([prompts_of(workload, batch) for batch in case.batches], dtype=float)
            limited = each.decode.last_seconds
        if fits.any():
            fastest = min(fastest, float(limited[fits].min()))
        taken = np.where(fits & (limited <= (np.inf if limit is None else limit)), prompts / seconds, 0.0)
        exact = Exact(each)
        sizes = np.unique(prompts) if filling else [None]
        for size in sizes:
            some = taken if size is None else np.where(prompts == size, taken, 0.0)
            for place in np.argsort(-some, axis=None)[:8]:  # the best that also holds when priced exactly
                row, b = np.unravel_index(int(place), some.shape)
                prediction = exact.alone(phase, int(row), int(b)) if some[row, b] > 0 else None
                if prediction is None or not prediction.fits:
                    continue
                wait = (prediction.batch - 1) / rate if rate is not None and phase == "prefill" else 0.0
                if limit is not None and _limited(prediction, basis) + wait > limit:
                    continue
                found.append(Unit(prediction, prompts[b] / total_seconds(prediction, basis), basis))
                break
    # of as many chips several may stay: pools are of whole units, so that a slower one may fill them as well
    kept = [u for i, u in enumerate(found) if all(u.rate / u.chips > v.rate / v.chips for v in found[:i])]
    if filling:
        kept = found
    if not kept:
        name = "max_ttft" if phase == "prefill" else "max_tpot"
        limit = getattr(tables[0].case.request, name)
        if np.isfinite(fastest) and limit is not None:
            raise InputError(
                name,
                format_seconds(limit),
                f"no unit meets it: the fastest {basis} is {format_seconds(fastest)}",
            )
        raise InputError(
            "cluster", tables[-1].case.cluster.name, f"no {phase} unit of these chips fits the model"
        )
    return kept


def _limited(prediction: Prediction, basis: Basis) -> float:
    return (total_seconds if prediction.phase == "prefill" else step_seconds)(prediction, basis)


def _balanced(
    tables: Sequence[Tables], prefill: Unit, decode: Unit, max_chips: int
) -> Iterator[DisaggregatedPlan]:
    """Pools of two kinds of unit within the chips: for every number of one, just enough of the other.

    For so many decode units the cost falls with every prefill unit while these or their links are the slower
    side, and rises from there.
    """
    for decode_units in range(1, (max_chips - prefill.chips) // decode.chips + 1):
        transfer = _transfer(tables, prefill, decode, decode_units)
        rate = min(prefill.rate, prefill.prediction.batch / transfer.seconds(prefill.basis))
        enough = decode_units * decode.rate / rate
        most = (max_chips - decode_units * decode.chips) // prefill.chips
        for prefill_units in {min(max(1, int(round_(enough))), most) for round_ in (np.floor, np.ceil)}:
            yield DisaggregatedPlan(prefill, decode, prefill_units, decode_units, transfer)


def _transfer(tables: Sequence[Tables], prefill: Unit, decode: Unit, decode_units: int) -> Transfer:
    """What it takes one prefill's keys and values to cross between the pools.

    Over the slowest level of the largest cluster, every chip of the prefill unit sending its part at once, or
    every chip of the decode pool, if they are fewer, taking one. The estimate is that of one message a chip.
    """
    setting = prefill.prediction.setting
    workload, model = setting.workload, setting.model
    held = model.kv_elements(workload.prompt) * prefill.prediction.batch * BYTES[setting.formats.kv]
    largest = max(tables, key=lambda table: table.case.cluster.chips).case.topology
    slowest = min(largest.levels, key=lambda level: level.bandwidth)
    least = held / (slowest.bandwidth * min(prefill.chips, decode_units * decode.chips))
    profile = setting.cluster.profile
    estimated = None if profile is None else float(sending_seconds(least, slowest.kind, profile))
    return Transfer(float(held), least, estimated)
