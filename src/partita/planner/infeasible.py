"""Why there is no plan: nothing fits, with the smallest change that would, or what fits misses a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.cost.prediction import Prediction, Setting
from partita.errors import InputError
from partita.planner.moments import Live, Moment
from partita.planner.nearest import nearest_pair
from partita.planner.pair import Pair, prompts_of
from partita.planner.remedies import PhaseFit, PlanFit, smallest_change
from partita.planner.tables import Tables
from partita.specs.units import format_bytes, format_seconds


def no_plan(tables: Sequence[Tables]) -> InputError:
    """The error that says why there is no plan: nothing fits, or what fits is too slow."""
    asked = tables[0].case.request
    limited = (asked.max_ttft, asked.max_tpot, asked.rate) != (None, None, None)
    closest = [pair for table in tables if (pair := nearest_pair(table)) is not None]
    fitting = [table for table in tables if _may_fit(table)]
    if fitting and limited and any(pair.fits for pair in closest):
        return too_slow(fitting)
    worst = min(closest, key=_excess)
    case = next(t.case for t in tables if t.case.cluster == worst.decode.setting.cluster)
    return too_large(worst, PlanFit(case))


def _excess(pair: Pair) -> float:
    """Bytes of a chip over what may be used."""
    return float(pair.fullest[1].total - pair.decode.setting.capacity_bytes)


def _may_fit(tables: Tables) -> bool:
    """Whether some layout of each phase fits alone."""
    return bool(tables.decode_fits.any() and tables.prefill_fits.any())


_NONE = "no layout meets this limit"


WHILE: dict[Moment, str] = {
    "reading": "while prompts are read",
    "moving": "while caches are moved",
    "decoding": "while tokens are decoded",
}


def too_large(pair: Pair, fit: PlanFit) -> InputError:
    """The error for a pair that does not fit, though it comes closest: what it needs, and what would fit."""
    setting, (moment, held) = pair.decode.setting, pair.fullest
    memory = live_memory(held, setting.capacity_bytes)
    return InputError(
        "cluster",
        setting.cluster.name,
        f"{setting.model.name} does not fit: {WHILE[moment]}, prefill in {pair.prefill.layout.roles} and "
        f"decode in {pair.decode.layout.roles}, a batch of {pair.decode.batch:,} needs "
        f"{memory_text(memory)} per chip{_of_all(setting)}; {smallest_change(setting, fit)}",
    )


def alone_fits(prediction: Prediction) -> None:
    """Raises InputError, with the smallest change that would help, where a single phase does not fit."""
    if prediction.fits:
        return
    setting, roles = prediction.setting, prediction.layout.roles
    raise InputError(
        "cluster",
        setting.cluster.name,
        f"{setting.model.name} does not fit: {prediction.phase} in {roles} needs "
        f"{memory_text(prediction.memory_bytes)} per chip{_of_all(setting)}; "
        f"{smallest_change(setting, PhaseFit(prediction))}",
    )


def _of_all(setting: Setting) -> str:
    """What part of a chip's memory may be used, where that is not all."""
    share, whole = setting.memory_utilization, setting.cluster.chip.hbm_bytes
    return "" if share == 1 else f" ({share:g} of {format_bytes(whole)})"


def live_memory(live: Live, capacity: int) -> dict[str, int]:
    """What a chip holds at a moment, as `Prediction.memory_bytes` has it."""
    parts = {name: int(size) for name, size in live._asdict().items()}
    return parts | {"total": sum(parts.values()), "capacity": capacity}


def too_slow(tables: Sequence[Tables]) -> InputError:
    """The error where layouts fit and none keeps the limits: which limit none keeps, and the best there is.

    Each of `tables` has a layout that fits in both phases.
    """
    case, asked = tables[0].case, tables[0].case.request
    basis = asked.ranked_by
    ttft = min(float(t.ttft_seconds[t.prefill_fits].min()) for t in tables)
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
            "rate", f"{asked.rate:.6g}/s", f"no layout sustains it: the highest rate here is {rate:.3g}/s"
        )
    # each is kept by some layout, if not by one pair
    given = {
        "max_tpot": None if asked.max_tpot is None else format_seconds(asked.max_tpot),
        "max_ttft": None if asked.max_ttft is None else format_seconds(asked.max_ttft),
        "rate": None if asked.rate is None else f"{asked.rate:.6g}/s",
    }
    (field, value), *others = ((name, text) for name, text in given.items() if text is not None)
    also = "".join(f" and the {name} of {text}" for name, text in others)
    return InputError(field, value, f"{_NONE}: no pair of layouts meets it{also}")


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
    sizes = np.array([portion.batch for portion in tables.portions])
    for batch, seconds in zip(case.batches, decode.tolist(), strict=True):
        prompts = prompts_of(case.workload, batch)
        rounds = -(-prompts // sizes)
        best = max(best, prompts / (seconds + float((rounds * prefill).min())))
    return best


def memory_text(memory: Mapping[str, int]) -> str:
    """What a chip holds, by part and in all, of what it has: `Prediction.memory_bytes` in words."""
    held = {part: size for part, size in memory.items() if part not in ("total", "capacity") and size}
    parts = " + ".join(f"{part} {format_bytes(size)}" for part, size in held.items())
    return f"{parts} = {format_bytes(memory['total'])} of {format_bytes(memory['capacity'])}"
