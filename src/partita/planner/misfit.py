"""The errors for what cannot be planned: nothing fits, or nothing keeps the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.fit import smallest_change
from partita.specs.units import format_bytes, format_seconds


def too_large(prediction: Prediction, fits: Callable[[Setting], bool]) -> InputError:
    """The error for a phase that does not fit; `fits(setting)` tells whether a changed setting does."""
    memory, setting = prediction.memory_bytes, prediction.setting
    parts = " + ".join(
        f"{part} {format_bytes(size)}"
        for part, size in memory.items()
        if part not in ("total", "capacity") and size
    )
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


def too_slow(ttft: float, tpot: float, max_ttft: float | None, max_tpot: float | None) -> InputError:
    """The error where layouts fit but none keeps the limits; `ttft` and `tpot` are the fastest there are."""
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


def nearest(predictions: Sequence[Prediction]) -> Prediction:
    """The phase that lacks least memory."""
    return min(predictions, key=lambda prediction: prediction.memory_bytes["total"])
