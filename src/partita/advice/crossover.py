"""How far the next crossover is: the batch, context or prompt at which another layout would be better.

For one phase at a time: layouts are compared by the time of a step, the bound or the estimate, and one that
no longer fits loses to any that does. Where to look is forecast from what a step is made of: every operation
is scaled by the dims it has, sequences B, new tokens L, cached positions S. That leaves out that tokens are
split otherwise where there are too few, so the forecast only says where to look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from partita.cost.estimate import estimate
from partita.cost.number import array
from partita.cost.prediction import Prediction, Setting
from partita.cost.roofline import bound
from partita.planner.pair import BASES, Basis, step_seconds
from partita.specs.profile import Phase

Quantity = Literal["batch", "context", "prompt"]
QUANTITIES: dict[Phase, tuple[Quantity, ...]] = {
    "prefill": ("batch", "prompt"),
    "decode": ("batch", "context"),
}
"""What a phase's step grows with: sequences, and tokens of the prompt or of the cache."""

MOST = 10**7
"""Largest batch, context or prompt looked at; no crossover beyond it is reported."""
RIVALS = 4
"""Candidates looked at on one side."""


@dataclass(frozen=True)
class Crossover:
    """The nearest value on one side at which `becomes` is better than the layout chosen here."""

    phase: Phase
    quantity: Quantity
    here: int
    value: int
    still: int
    """The value nearest to it, of those priced, at which the chosen layout is still the best."""
    becomes: str
    why: Literal["faster", "fits"]
    gains: float
    """Part of the chosen layout's step that the other saves at `value`; 0 where it only fits."""
    bound_gains: float
    """That part by the bound, whichever time they are compared by."""
    basis: Basis = "bound"

    def __str__(self) -> str:
        side = "from" if self.value > self.here else "down from"
        gain = "is faster" if self.why == "faster" else "fits where this does not"
        loose = "" if abs(self.value - self.still) == 1 else f" (not yet at {self.still:,})"
        return (
            f"{self.phase}: {side} {self.quantity} {self.value:,}{loose} {self.becomes} {gain}; "
            f"here {self.here:,}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "quantity": self.quantity,
            "here": self.here,
            "value": self.value,
            "still": self.still,
            "becomes": self.becomes,
            "why": self.why,
            "bound": {"gains": self.bound_gains},
            "estimate": {"gains": self.gains} if self.basis == "estimate" else None,
        }


def crossovers(
    chosen: Prediction, candidates: Sequence[Prediction], *, evaluations: int = 200, basis: Basis = "bound"
) -> list[Crossover]:
    """The nearest crossovers of a phase above and below what it was priced for, in all its quantities.

    `candidates` are other layouts of the same phase and model, on the chosen one's mesh or another; each is
    priced with the storage it comes with. At most about `evaluations` steps are priced: what one side does
    not need is left to the next. A candidate that is already better here is left out: it lost for reasons of
    the whole plan. `basis`: the time they are compared by; errors as those of `pair.step_seconds`.
    """
    rivals = [c for c in candidates if not _better(c, chosen, basis)]
    quantities = QUANTITIES[chosen.phase]
    sides: list[tuple[Quantity, bool]] = [(quantity, up) for up in (False, True) for quantity in quantities]
    found, left = [], evaluations
    for place, (quantity, up) in enumerate(sides if rivals else ()):
        search = _Search(chosen, rivals, quantity, left // (len(sides) - place), basis)
        crossing = search.run(up)
        left -= search.used
        if crossing is not None:
            found.append(crossing)
    return found


class _Search:
    """One search to one side, for the nearest value at which a candidate is better.

    A forecast picks the candidates to look at, at most `RIVALS`, and where to look first. From there the
    value grows (or shrinks) by a factor of 4 a step, of 16 where nothing is forecast, until a candidate is
    better or nothing fits; then bisection against those that were, down to the exact value or until
    `evaluations` steps were priced: `Crossover.still` says how far it was pinned down. A candidate that is
    better only between two of the steps is not seen; tokens that do not divide make such gaps close to a
    crossover.
    """

    def __init__(
        self,
        chosen: Prediction,
        candidates: Sequence[Prediction],
        quantity: Quantity,
        evaluations: int,
        basis: Basis,
    ):
        self.chosen, self.candidates = chosen, candidates
        self.quantity: Quantity = quantity
        self.evaluations, self.used = evaluations, 0
        self.basis: Basis = basis

    def run(self, up: bool) -> Crossover | None:
        here = good = bad = _value(self.chosen, self.quantity)
        better: list[Prediction] = []
        reach = MOST / here if up else 1 / here
        factors = np.geomspace(1, reach, num=max(2, round(4 * abs(math.log2(reach))) + 1))[1:]
        rivals, factor = likely(self.chosen, self.candidates, self.quantity, factors, RIVALS, self.basis)
        for bad in _steps(here, up, None if factor is None else round(here * factor)):
            better, some_fit = self.better_at(bad, rivals)
            if better:
                break
            if not some_fit or self.used >= self.evaluations:
                return None
            good = bad
        if not better:
            return None
        while abs(bad - good) > 1 and self.used < self.evaluations:
            wide = max(good, bad) > 2 * min(good, bad)
            middle = math.isqrt(good * bad) if wide else (good + bad) // 2
            still, _ = self.better_at(middle, better)
            if still:
                better, bad = still, middle
            else:
                good = middle
        return self.crossover(here, good, bad, better)

    def crossover(self, here: int, good: int, bad: int, better: list[Prediction]) -> Crossover:
        chosen = self.price(self.chosen, bad)
        priced = (self.price(c, bad) for c in better)
        best = min(priced, key=lambda p: (not p.fits, step_seconds(p, self.basis)))
        gains, bound_gains = (
            1 - step_seconds(best, basis) / step_seconds(chosen, basis) for basis in (self.basis, BASES[0])
        )
        faster = chosen.fits and gains > 0
        return Crossover(
            phase=chosen.phase,
            quantity=self.quantity,
            here=here,
            value=bad,
            still=good,
            becomes=_name(best, self.chosen),
            why="faster" if faster else "fits",
            gains=gains if faster else 0.0,
            bound_gains=bound_gains if faster else 0.0,
            basis=self.basis,
        )

    def better_at(self, value: int, rivals: Sequence[Prediction]) -> tuple[list[Prediction], bool]:
        """Those of `rivals` that are better at a value, and whether anything fits there."""
        chosen = self.price(self.chosen, value)
        priced = [(rival, self.price(rival, value)) for rival in rivals]
        some_fit = chosen.fits or any(there.fits for _, there in priced)
        return [rival for rival, there in priced if some_fit and _better(there, chosen, self.basis)], some_fit

    def price(self, prediction: Prediction, value: int) -> Prediction:
        """The same layout for another batch, context or prompt."""
        self.used += 1
        changed = _sized(prediction.setting, prediction.phase, self.quantity, value)
        return prediction.priced_in(changed)


def _name(found: Prediction, chosen: Prediction) -> str:
    """The layout, with its mesh and stages where they differ from the chosen one's."""
    stages, other = chosen.setting.stages, found.setting.stages
    apart = "" if found.setting.mesh == chosen.setting.mesh else f" on {found.setting.mesh}"
    return f"{found.layout.roles}{apart}" + ("" if stages == other else f" in {other} stages")


def _better(one: Prediction, other: Prediction, basis: Basis) -> bool:
    return (not one.fits, step_seconds(one, basis)) < (not other.fits, step_seconds(other, basis))


def _steps(here: int, up: bool, first: int | None) -> Iterator[int]:
    """The values looked at: first what is forecast, where that lies beyond `here`, then on to the end."""
    value, factor = here, 16 if first is None else 4
    if first is not None and first not in (here, 0):
        value = min(first, MOST)
        yield value
    while value < MOST if up else value > 1:
        value = min(factor * value, MOST) if up else value // factor or 1
        yield value


def _value(prediction: Prediction, quantity: Quantity) -> int:
    if quantity == "batch":
        return prediction.batch
    return getattr(prediction.setting.workload, quantity)


def _sized(setting: Setting, phase: Phase, quantity: Quantity, value: int) -> Setting:
    workload = setting.workload
    sizes = {"prefill_batch" if quantity == "batch" and phase == "prefill" else quantity: value}
    if quantity == "prompt":
        sizes["context"] = max(workload.context, value + workload.output)
        sizes["prefix"] = min(workload.prefix, value - 1)  # at least one token of a prompt is new
    return replace(setting, workload=workload.resized(**sizes))


_GROWING = ("flops", "needed_flops", "moved_bytes", "sent_bytes")
"""Counts of an operation that grow with its dims."""
_GROWS = {"batch": "B", "context": "S", "prompt": "LS"}
"""Dims that each quantity is a factor of; in a prefill the positions attended to are the prompt's own."""


def forecast(
    prediction: Prediction, quantity: str, factors: np.ndarray, basis: Basis = "bound"
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a step and bytes of a chip, at each factor times the quantity."""
    peaks, letters = prediction.setting.peaks, _GROWS[quantity]
    # keys and values grow with positions and sequences, however many queries there are
    cached = factors ** len({"B", "S"}.intersection(letters))
    entries = []
    for entry in prediction.step.ledger.entries:
        dims = {dim for sharding in (*entry.before, entry.after) for dim in sharding.dims}
        grown = factors ** len(dims.intersection(letters))
        counts = {name: grown * float(n) for name in _GROWING if (n := getattr(entry, name))}
        if entry.kv_bytes:
            counts["kv_bytes"] = cached * float(entry.kv_bytes)
        if entry.second and not entry.weight_bytes:
            counts["second"] = cached * float(entry.second)
        entries.append(replace(entry, **counts) if counts else entry)
    ledger = prediction.step.ledger
    sequences = ledger.sequences * (factors if "B" in letters else 1)
    ledger = replace(ledger, entries=entries, sequences=sequences)
    profile = prediction.setting.cluster.profile
    if basis == "bound" or profile is None:
        seconds = bound(ledger, peaks).step_seconds
    else:
        seconds = estimate(ledger, peaks, profile).step_seconds
    held = prediction.memory_bytes
    growing = held["activations"] * (factors if letters != "S" else 1) + held["kv"] * factors
    return array(seconds), held["weights"] + held["runtime"] + growing


def likely(
    chosen: Prediction,
    rivals: Sequence[Prediction],
    quantity: str,
    factors: np.ndarray,
    most: int,
    basis: Basis = "bound",
) -> tuple[list[Prediction], float | None]:
    """The rivals forecast to be better first along `factors`, at most `most`; and where the first of them is.

    Those that are never forecast to be better follow, by how near they come. None where there is
    no forecast.
    """
    capacity = chosen.memory_bytes["capacity"]
    seconds, held = forecast(chosen, quantity, factors, basis)
    order: list[tuple[tuple[int, float], Prediction]] = []
    for rival in rivals:
        its_seconds, needs = forecast(rival, quantity, factors, basis)
        fits = needs <= capacity
        better = fits & ((its_seconds < seconds) | (held > capacity))
        first = int(better.argmax()) if better.any() else len(factors)
        order.append(((first, float(np.min(its_seconds / seconds))), rival))
    order.sort(key=lambda entry: entry[0])
    first = order[0][0][0] if order else len(factors)
    place = float(factors[first]) if first < len(factors) else None
    return [rival for _, rival in order[:most]], place
