"""The errors for what cannot be planned: nothing fits, or nothing keeps the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.fit import smallest_change
from partita.planner.pair import prompts_of
from partita.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from partita.planner.phases import Tables

_NONE = "no layout keeps this limit"


def too_large(prediction: Prediction, fits: Callable[[Setting], bool]) -> InputError:
    """The error for a phase that does not fit; `fits(setting)` tells whether a changed setting does."""
    memory, setting = prediction.memory_bytes, prediction.setting
    return InputError(
        "cluster",
        setting.cluster.name,
        f"{setting.model.name} does not fit: {prediction.phase} in {prediction.layout.roles} needs "
        f"{memory_text(memory)} per chip; "
        f"{smallest_change(setting, fits)}",
    )


def alone_fits(prediction: Prediction) -> None:
    """Raises InputError, with the smallest change that would help, where a single phase does not fit."""
    if not prediction.fits:
        roles = prediction.layout.roles
        raise too_large(prediction, lambda setting: predict(setting, prediction.phase, roles).fits)


def too_slow(tables: Sequence[Tables]) -> InputError:
    """The error where layouts fit and none keeps the limits: which limit none keeps, and the best there is.

    Each of `tables` has a layout that fits in both phases.
    """
    case, asked = tables[0].case, tables[0].case.request
    basis = asked.ranked_by
    ttft = min(float(t.prefill_seconds[t.prefill_fits].min()) for t in tables)
    tpot = min(map(_fastest_step, tables))
    if asked.max_ttft is not None and ttft > asked.max_ttft:
        best = f"the fastest prefill's {basis} is {format_seconds(ttft)}"
        return InputError("max_ttft", format_seconds(asked.max_ttft), f"{_NONE}: {best}")
    if asked.max_tpot is not None and tpot > asked.max_tpot:
        beside = " with a chunk of a prompt beside it" if case.interleaved else ""
        best = f"the fastest decode step's {basis}{beside} is {format_seconds(tpot)}"
        return InputError("max_tpot", format_seconds(asked.max_tpot), f"{_NONE}: {best}")
    if asked.rate is not None and (rate := max(map(_highest_rate, tables))) < asked.rate:
        return InputError(
            "rate", f"{asked.rate:.6g}/s", f"no layout sustains it: at most {rate:.3g}/s are taken here"
        )
    # each is kept by some layout, if not by one pair
    given = {
        "max_tpot": None if asked.max_tpot is None else format_seconds(asked.max_tpot),
        "max_ttft": None if asked.max_ttft is None else format_seconds(asked.max_ttft),
        "rate": None if asked.rate is None else f"{asked.rate:.6g}/s",
    }
    (field, value), *others = ((name, text) for name, text in given.items() if text is not None)
    also = "".join(f" and the {name} of {text}" for name, text in others)
    return InputError(field, value, f"{_NONE}: no pair of layouts keeps it{also}")


def _fastest_step(tables: Tables) -> float:
    """Seconds, at least, of a decode step, and of a chunk where that is read in between."""
    step = float(tables.decode.last_seconds[tables.decode_fits].min())
    chunk = float(tables.prefill.last_seconds[tables.prefill_fits].min())
    return step + (chunk if tables.case.interleaved else 0.0)


def _highest_rate(tables: Tables) -> float:
    """Prompts per second that are taken at most, whatever the storage."""
    case, best = tables.case, 0.0
    decode = np.where(tables.decode_fits, tables.decode_seconds, np.inf).min(axis=0)
    prefill = np.where(tables.prefill_fits, tables.prefill_seconds, np.inf).min(axis=0)
    sizes = np.array(case.prefill_batches)
    for batch, seconds in zip(case.batches, decode.tolist(), strict=True):
        prompts = prompts_of(case.workload, batch)
        rounds = -(-prompts // sizes)
        best = max(best, prompts / (seconds + float((rounds * prefill).min())))
    return best


def nearest(predictions: Sequence[Prediction]) -> Prediction:
    """The phase that lacks least memory."""
    return min(predictions, key=lambda prediction: prediction.memory_bytes["total"])


def memory_text(memory: Mapping[str, int]) -> str:
    """What a chip holds, by part and in all, of what it has: `Prediction.memory_bytes` in words."""
    held = {part: size for part, size in memory.items() if part not in ("total", "capacity") and size}
    parts = " + ".join(f"{part} {format_bytes(size)}" for part, size in held.items())
    return f"{parts} = {format_bytes(memory['total'])} of {format_bytes(memory['capacity'])}"
