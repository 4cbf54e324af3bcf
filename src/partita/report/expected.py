"""An estimate for people: seconds with their range, the parts of a step, and what the profile had not seen.

Knows nothing about how estimates are made, nor about the bound beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from partita.cost.expected import Expected
from partita.cost.prediction import Prediction
from partita.specs.units import format_range

NO_PROFILE = "no profile for this cluster: bound only; `partita calibrate` makes one"


def step_text(found: Expected | None) -> str:
    """Of a step; empty where there is no estimate."""
    return "" if found is None else format_range(found.step_seconds, found.step_interval)


def phase_text(found: Expected | None) -> str:
    """Of the whole phase; empty where there is no estimate."""
    return "" if found is None else format_range(found.total_seconds, found.total_interval)


def parts(prediction: Prediction) -> dict[str, float]:
    """Seconds of a step by what takes them; empty where there is no estimate, and they add up to it.

    "operations" is held at the bound where the parts are less.
    """
    found = prediction.estimate
    if found is None:
        return {}
    whole = found.parts
    others = {
        "communication": float(whole.communication_seconds),
        "layers": float(whole.layer_seconds),
        "host": whole.host_seconds,
    }
    busy = float(whole.step_seconds)
    waiting = found.step_seconds - busy if prediction.setting.stages > 1 else 0.0
    operations = found.step_seconds - waiting - sum(others.values())
    return {"operations": operations, **others, "waiting for other stages": waiting}


def note(found: Sequence[Prediction]) -> Text:
    """Of phases on one cluster: the profile, and in one sentence everything that it extrapolates."""
    estimates = [(p.phase, p.estimate) for p in found if p.estimate is not None]
    if not estimates:
        return Text(NO_PROFILE)
    profile = estimates[0][1].profile
    beyond = {phase: estimate.interval.extrapolated for phase, estimate in estimates}
    said = ", ".join(f"{phase} ({'; '.join(sentences)})" for phase, sentences in beyond.items() if sentences)
    more = (
        f"Extrapolated, so the range is wider: {said}."
        if said
        else "Nothing is extrapolated: all of it lies within what the profile was fitted to."
    )
    return Text(
        f"Estimated by profile {profile.name}; a range holds 9 of 10 measurements that were left out of its "
        f"fit. {more}"
    )
