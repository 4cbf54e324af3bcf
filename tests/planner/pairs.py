"""Pairs of layouts by name, priced on the storage they share."""

from partita.cost.prediction import Prediction, Setting, predict
from partita.planner.pair import Basis, Pair
from partita.sharding.layout import plan_storage
from partita.sharding.roles import parse_layout
from partita.specs.profile import Phase

NAMED = [
    f"{ffn}/{attention}"
    for ffn in ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
    for attention in ("heads", "batch")
]


def pair_of(given: Setting, prefill: str, decode: str | None = None, basis: Basis = "bound") -> Pair:
    """`ws2d/heads` and `ws2d/batch`; one name is both phases' layout."""
    roles = [parse_layout(text, given.mesh.axes) for text in (prefill, decode or prefill)]
    storage = plan_storage(given.model, given.mesh, roles[1], roles[0])
    return Pair(
        predict(given, "prefill", roles[0], storage),
        predict(given, "decode", roles[1], storage),
        basis,
    )


def phase_of(given: Setting, phase: Phase, layout: str) -> Prediction:
    """One phase alone."""
    return predict(given, phase, parse_layout(layout, given.mesh.axes))
