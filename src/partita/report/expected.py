"""An estimate for people: seconds with their range, the parts of a step, and what the profile had not seen.

Knows nothing about how estimates are made, nor about the bound beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from partita.cost.interval import COVERAGE, NOT_SAID
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction
from partita.specs.profile import COVERAGES, Profile
from partita.specs.units import format_range

NO_PROFILE = "no profile for this cluster: bound only; `partita calibrate` makes one"
_PARTS = {
    "operation_seconds": "operations",
    "communication_seconds": "communication",
    "layer_seconds": "layers",
    "host_seconds": "host",
    "idle_seconds": "waiting for other stages",
}


def step_text(found: PhaseEstimate | None) -> str:
    """Of a step; empty where there is no estimate."""
    return "" if found is None else format_range(found.step_seconds, found.step_interval)


def phase_text(found: PhaseEstimate | None) -> str:
    """Of the whole phase; empty where there is no estimate."""
    return "" if found is None else format_range(found.total_seconds, found.total_interval)


def parts(prediction: Prediction) -> dict[str, float]:
    """Seconds of a step by what takes them (`PhaseEstimate.step_parts`); empty where there is no estimate."""
    found = prediction.estimate
    return {} if found is None else {_PARTS[name]: each for name, each in found.step_parts.items()}


def note(found: Sequence[Prediction]) -> Text:
    """Of phases on one cluster: the profile, what its range is, and in one sentence what it extrapolates."""
    estimates = [(p.phase, p.estimate) for p in found if p.estimate is not None]
    if not estimates:
        return Text(NO_PROFILE)
    profile = estimates[0][1].profile
    return Text(f"Estimated by profile {profile.name}; {_range(profile)}. {_beyond(estimates)}.")


def _range(profile: Profile) -> str:
    """What is known of how often the range holds."""
    if not profile.residuals:
        return "nothing was left out of its fit, so the range is a guess"
    if not profile.coverage:
        count = profile.held_out or len(profile.residuals)
        return f"a {COVERAGE:.0%} range, made of {count} measurements left out of its fit"
    held = dict(zip(COVERAGES, profile.coverage, strict=True))[COVERAGE]
    return f"a {COVERAGE:.0%} range; of measurements left out of its fit {held:.0%} lay in theirs"


def _beyond(estimates: Sequence[tuple[str, PhaseEstimate]]) -> str:
    """What the profile had not seen, by phase."""
    if not estimates[0][1].profile.region:
        return f"{NOT_SAID[0].upper()}{NOT_SAID[1:]}"
    beyond = {phase: estimate.interval.extrapolated for phase, estimate in estimates}
    said = ", ".join(f"{phase} ({'; '.join(sentences)})" for phase, sentences in beyond.items() if sentences)
    if said:
        return f"Extrapolated, so the range is wider: {said}"
    return "Nothing is extrapolated: all of it lies within what the profile was fitted to"
