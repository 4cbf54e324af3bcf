"""Why a pair of layouts was chosen, in sentences with the numbers they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from partita.cost.prediction import Prediction
from partita.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from partita.planner.pair import Pair

_BINDS = {
    "compute": "the matmuls bind",
    "weights": "reading the weights binds",
    "kv": "reading the KV cache binds",
}


def reasons(objective: str, chosen: Pair, pairs: Sequence[Pair]) -> Iterator[str]:
    """What binds each phase, and by how much the best of every other layout loses or why it is out."""
    for phase in ("prefill", "decode"):
        mine: Prediction = getattr(chosen, phase)
        bound = mine.bound
        yield (
            f"{phase}: {mine.layout.roles}; {binding(mine)}: compute {_ms(bound.compute_seconds)}, "
            f"memory {_ms(bound.memory_seconds)}, communication {_ms(bound.communication_seconds)}"
        )
        rivals = {}
        for pair in pairs:
            rival: Prediction = getattr(pair, phase)
            ffn = rival.layout.roles.ffn
            if ffn == mine.layout.roles.ffn:
                continue
            best = rivals.get(ffn)
            if best is None or (not rival.fits, rival.step_seconds) < (not best.fits, best.step_seconds):
                rivals[ffn] = rival
        for ffn, rival in rivals.items():
            if not rival.fits:
                memory = rival.memory_bytes
                yield (
                    f"{phase}: {ffn} does not fit: {format_bytes(memory['total'])} "
                    f"of {format_bytes(memory['capacity'])} per chip"
                )
            else:
                loses = slower(rival.step_seconds / mine.step_seconds)
                yield f"{phase}: {rival.layout.roles} {loses} ({_ms(rival.step_seconds)})"
    if chosen.prefill.padding:
        padded = ", ".join(f"{k} {v['from']} -> {v['to']}" for k, v in chosen.prefill.padding.items())
        share = chosen.prefill.padded_parameters / chosen.prefill.setting.model.parameters
        yield f"padding: {padded}; {share:.1%} more parameters"


def slower(ratio: float) -> str:
    """In words, what takes `ratio` times as long: "is 22.0% slower", "takes 11.1 times as long"."""
    if ratio >= 2:
        return f"takes {ratio:,.0f} times as long" if ratio >= 100 else f"takes {ratio:.3g} times as long"
    return f"is {abs(ratio - 1):.1%} {'slower' if ratio >= 1 else 'faster'}"


def binding(prediction: Prediction) -> str:
    binds = prediction.bound.binds
    axes = binds.removeprefix("link:")
    return _BINDS.get(binds) or f"the links of {'axis' if len(axes) == 1 else 'axes'} {axes} bind"


def _ms(seconds: float) -> str:
    return format_seconds(float(seconds))
