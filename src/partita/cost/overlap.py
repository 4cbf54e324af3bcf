"""Which collectives to loop with the einsums next to them, and which way round, by the estimate.

Knows nothing about what a loop costs: the ledgers and the estimate say that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partita.cost.estimate import estimate
from partita.cost.ledger import Ledger
from partita.cost.setting import Setting
from partita.cost.step import price_step
from partita.program.options import RunOptions, Way, overlap_of
from partita.sharding.layout import Layout

_LOOPED: tuple[Way, ...] = ("one-way", "two-way")

Price = Callable[[Mapping[str, Way]], Ledger]
"""The ledger of a step with these operations looped (`RunOptions.overlap`)."""


def choose(price: Price, seconds: Callable[[Ledger], float]) -> dict[str, Way]:
    """The way of each operation that is faster looped than not; of equals, the one that loops less.

    One at a time, in program order, since what one loop hides no other can: a gather and a scatter next to
    the same einsum are not both looped.
    """
    chosen: dict[str, Way] = {}
    least = seconds(price({}))
    for name in _loops(price({"gather": "one-way"})) + _loops(price({"scatter": "one-way"})):
        best: Way | None = None
        for way in _LOOPED:
            found = seconds(price({**chosen, name: way}))
            if found < least:
                least, best = found, way
        if best is not None:
            chosen[name] = best
    return chosen


def overlap_for(
    setting: Setting, layout: Layout, *, batch: int, queries: int, context: int | None = None
) -> dict[str, Way]:
    """What to loop in a step of `price_step` on the cluster; nothing where its chips have no profile
    that would say what is gained."""
    profile, peaks = setting.cluster.profile, setting.peaks
    if profile is None:
        return {}

    def price(overlap: Mapping[str, Way]) -> Ledger:
        step = price_step(
            setting.model,
            layout,
            setting.mesh.size,
            setting.formats,
            batch=batch,
            queries=queries,
            context=context,
            run_options=RunOptions(overlap_of(overlap)),
        )
        return step.ledger

    return choose(price, lambda ledger: float(estimate(ledger, peaks, profile).device_seconds))


def _loops(ledger: Ledger) -> list[str]:
    """Names of what is looped, once each."""
    return list(dict.fromkeys(entry.loop.name for entry in ledger.entries if entry.loop is not None))
