"""Which layouts may overtake another as a quantity grows or shrinks: a forecast from what a step is made of.

Every operation of a step is scaled by the dims it has: sequences B, new tokens L, cached positions S. That
leaves out that tokens are split otherwise where there are too few, so a forecast only says where to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.cost.estimate import estimate
from partita.cost.prediction import Prediction
from partita.cost.roofline import bound
from partita.planner.basis import Basis

Numbers = np.ndarray

_GROWING = ("flops", "needed_flops", "moved_bytes", "sent_bytes")
"""Counts of an operation that grow with its dims."""
_GROWS = {"batch": "B", "context": "S", "prompt": "LS"}
"""Dims that each quantity is a factor of; in a prefill the positions attended to are the prompt's own."""


def forecast(
    prediction: Prediction, quantity: str, factors: Numbers, basis: Basis = "bound"
) -> tuple[Numbers, Numbers]:
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
    return seconds, held["weights"] + held["runtime"] + growing


def likely(
    chosen: Prediction,
    rivals: Sequence[Prediction],
    quantity: str,
    factors: Numbers,
    most: int,
    basis: Basis = "bound",
) -> tuple[list[Prediction], float | None]:
    """The rivals forecast to be better first along `factors`, at most `most`; and where the first of them is.

    Those that are never forecast to be follow in the order of the time they come nearest. None where there is
    no forecast.
    """
    capacity = chosen.memory_bytes["capacity"]
    mine, held = forecast(chosen, quantity, factors, basis)
    order: list[tuple[tuple[int, float], Prediction]] = []
    for rival in rivals:
        theirs, needs = forecast(rival, quantity, factors, basis)
        fits = needs <= capacity
        better = fits & ((theirs < mine) | (held > capacity))
        first = int(better.argmax()) if better.any() else len(factors)
        order.append(((first, float(np.min(theirs / mine))), rival))
    order.sort(key=lambda entry: entry[0])
    first = order[0][0][0] if order else len(factors)
    place = float(factors[first]) if first < len(factors) else None
    return [rival for _, rival in order[:most]], place
