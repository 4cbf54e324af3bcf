"""Why a pair of layouts was chosen, in sentences with the numbers they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from partita.cost.prediction import Prediction
from partita.planner.pair import Basis, expected, step_seconds
from partita.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from partita.planner.pair import Pair

_BINDS = {
    "compute": "the matmuls bind",
    "weights": "reading the weights binds",
    "kv": "reading the KV cache binds",
}


def reasons(objective: str, chosen: Pair, pairs: Sequence[Pair]) -> Iterator[str]:
    """What limits each phase, and by how much the best of every other layout loses, or why it is out.

    Times are bounds or estimates, as those of `chosen` are.
    """
    basis = chosen.basis
    for phase in ("prefill", "decode"):
        best: Prediction = getattr(chosen, phase)
        yield f"{phase}: {best.layout.roles}; {_parts(best, basis)}"
        rivals = {}
        for pair in pairs:
            rival: Prediction = getattr(pair, phase)
            ffn = rival.layout.roles.ffn
            if ffn == best.layout.roles.ffn:
                continue
            before = rivals.get(ffn)
            if before is None or _rank(rival, basis) < _rank(before, basis):
                rivals[ffn] = rival
        for ffn, rival in rivals.items():
            if not rival.fits:
                memory = rival.memory_bytes
                yield (
                    f"{phase}: {ffn} does not fit: {format_bytes(memory['total'])} "
                    f"of {format_bytes(memory['capacity'])} per chip"
                )
            else:
                seconds = step_seconds(rival, basis)
                loses = slower(seconds / step_seconds(best, basis))
                yield f"{phase}: {rival.layout.roles} {loses} ({_ms(seconds)})"
    if chosen.prefill.padding:
        padded = ", ".join(f"{k} {v['from']} -> {v['to']}" for k, v in chosen.prefill.padding.items())
        share = chosen.prefill.padded_parameters / chosen.prefill.setting.model.parameters
        yield f"padding: {padded}; {share:.1%} more parameters"


def _parts(prediction: Prediction, basis: Basis) -> str:
    """What a step is made of, at peak and as estimated."""
    bound = prediction.bound
    at_peak = (
        f"{binding(prediction)}: compute {_ms(bound.compute_seconds)}, memory {_ms(bound.memory_seconds)}, "
        f"communication {_ms(bound.communication_seconds)}"
    )
    if basis == "bound":
        return at_peak
    parts = expected(prediction).step_parts
    besides, idle = parts["layer_seconds"] + parts["host_seconds"], parts["idle_seconds"]
    return (
        f"estimated {_ms(step_seconds(prediction, basis))}: operations "
        f"{_ms(parts['operation_seconds'])}, communication {_ms(parts['communication_seconds'])}"
        f"{f', layers and host {_ms(besides)}' if besides else ''}"
        f"{f', waiting for other stages {_ms(idle)}' if idle else ''}; at peak {at_peak}"
    )


def _rank(prediction: Prediction, basis: Basis) -> tuple[bool, float]:
    return not prediction.fits, step_seconds(prediction, basis)


def slower(ratio: float) -> str:
    """Says what takes `ratio` times as long: "is 22.0% slower", "takes 11.1 times as long"."""
    if ratio >= 2:
        return f"takes {ratio:,.0f} times as long" if ratio >= 100 else f"takes {ratio:.3g} times as long"
    return f"is {abs(ratio - 1):.1%} {'slower' if ratio >= 1 else 'faster'}"


def binding(prediction: Prediction) -> str:
    """What takes longest at peak, in words."""
    binds = prediction.bound.binds
    axes = binds.removeprefix("link:")
    return _BINDS.get(binds) or f"the links of {'axis' if len(axes) == 1 else 'axes'} {axes} bind"


def _ms(seconds: float) -> str:
    return format_seconds(float(seconds))
