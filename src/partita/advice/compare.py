"""Two plans side by side: their settings, their layouts, and which is better by how much.

Both are priced by the same cost model, so what differs is the plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from partita.cost.prediction import Prediction
from partita.planner.infeasible import live_memory
from partita.planner.moments import Moment
from partita.planner.pair import Basis, Pair
from partita.planner.saved import setting_as_json


class Priced(Protocol):
    """A saved plan, or anything else that can price its two phases: prefill, then decode."""

    def predictions(self) -> tuple[Prediction, Prediction]: ...


@dataclass(frozen=True)
class ComparedFigure:
    """One number of both plans."""

    name: str
    unit: str
    """seconds, chip-seconds, tokens/s, bytes, tokens, sequences, chips, share or currency."""
    a: float
    b: float
    better: Literal["lower", "higher"] | None
    """Which is better; None where it is neither, such as memory used."""

    @property
    def change(self) -> float | None:
        """The relative change from a to b, 0.1 for 10% more; None where a is 0."""
        return self.b / self.a - 1 if self.a else None

    @property
    def winner(self) -> Literal["a", "b"] | None:
        """None where they are equal (to nine digits), or where neither is better."""
        if self.better is None or f"{self.a:.9g}" == f"{self.b:.9g}":
            return None
        return "a" if (self.a < self.b) == (self.better == "lower") else "b"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "a": self.a,
            "b": self.b,
            "change": self.change,
            "better": self.winner,
        }


@dataclass(frozen=True)
class Comparison:
    """What differs between two plans."""

    setting: dict[str, tuple[Any, Any]]
    """The fields of model, cluster, mesh, formats and workload that differ: dotted name -> both values."""
    layouts: dict[str, tuple[str, str]]
    """Phase -> the layouts of a and of b, equal ones too."""
    figures: tuple[ComparedFigure, ...]
    """Times, costs and MFU are bounds."""
    estimates: tuple[ComparedFigure, ...] = ()
    """The same times, costs and MFU as estimated; none where a plan's cluster has no profile."""

    def figure(self, name: str) -> ComparedFigure:
        """Raises KeyError where neither plan has it."""
        return next((f for f in self.figures if f.name == name), None) or _missing(name)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "partita.comparison/1",
            "setting": {name: {"a": a, "b": b} for name, (a, b) in self.setting.items()},
            "layouts": {phase: {"a": a, "b": b} for phase, (a, b) in self.layouts.items()},
            "bound": [figure.as_json() for figure in self.figures],
            "estimate": [figure.as_json() for figure in self.estimates] or None,
        }


def _missing(name: str) -> ComparedFigure:
    raise KeyError(name)


def compare(a: Priced, b: Priced) -> Comparison:
    """Prices both plans and lists what differs."""
    pairs = [Pair(*plan.predictions(), basis="bound") for plan in (a, b)]
    one, other = pairs
    settings = [dict(_flat(setting_as_json(pair.decode.setting))) for pair in pairs]
    names = [*settings[0], *(name for name in settings[1] if name not in settings[0])]
    values = {name: (settings[0].get(name), settings[1].get(name)) for name in names}
    expected = [replace(p, basis="estimate") for p in pairs if p.decode.setting.cluster.profile is not None]
    phases = {"prefill": (one.prefill, other.prefill), "decode": (one.decode, other.decode)}
    return Comparison(
        setting={name: value for name, value in values.items() if value[0] != value[1]},
        layouts={phase: (str(a.layout.roles), str(b.layout.roles)) for phase, (a, b) in phases.items()},
        figures=(*_times(one, other), *_sizes(one, other)),
        estimates=tuple(_times(*expected)) if len(expected) == 2 else (),
    )


def _times(a: Pair, b: Pair) -> Iterator[ComparedFigure]:
    """Times, and what follows from them; by either time, as the pairs are."""
    yield ComparedFigure("ttft", "seconds", a.ttft_seconds, b.ttft_seconds, "lower")
    yield ComparedFigure("tpot", "seconds", a.tpot_seconds, b.tpot_seconds, "lower")
    yield ComparedFigure("switch", "seconds", a.reshard_seconds, b.reshard_seconds, "lower")
    yield ComparedFigure("latency", "seconds", a.latency_seconds, b.latency_seconds, "lower")
    cost = a.chip_seconds_per_output_token, b.chip_seconds_per_output_token
    yield ComparedFigure("cost", "chip-seconds", *cost, "lower")
    prices = [pair.decode.setting.cluster.chip.price_per_hour for pair in (a, b)]
    if prices[0] is not None and prices[1] is not None:
        paid = (cost[0] * prices[0] / 3600 * 1e6, cost[1] * prices[1] / 3600 * 1e6)
        yield ComparedFigure("price_per_million_output_tokens", "currency", *paid, "lower")
    yield ComparedFigure(
        "throughput", "tokens/s", a.output_tokens_per_second, b.output_tokens_per_second, "higher"
    )
    for phase in ("prefill", "decode"):
        first, second = (_mfu(getattr(pair, phase), pair.basis) for pair in (a, b))
        yield ComparedFigure(f"{phase}_mfu", "share", first, second, "higher")


def _mfu(prediction: Prediction, basis: Basis) -> float:
    return prediction.bound_mfu if basis == "bound" else prediction.mfu


def _sizes(a: Pair, b: Pair) -> Iterator[ComparedFigure]:
    """What chips hold, and how many there are."""
    yield ComparedFigure("context", "tokens", a.max_context, b.max_context, "higher")
    yield ComparedFigure("batch", "sequences", a.max_batch, b.max_batch, "higher")
    moments: dict[str, Moment] = {"prefill": "reading", "decode": "decoding"}
    for phase, moment in moments.items():
        held = [live_memory(pair.memory[moment], pair.decode.setting.capacity_bytes) for pair in (a, b)]
        for part in dict.fromkeys([*held[0], *held[1]]):
            yield ComparedFigure(
                f"{phase}_memory_{part}", "bytes", held[0].get(part, 0), held[1].get(part, 0), None
            )
    chips = a.decode.setting.cluster.chips, b.decode.setting.cluster.chips
    yield ComparedFigure("chips", "chips", *chips, None)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and lists by dotted names; what is None is left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{place}")
    elif value is not None:
        yield name, value
