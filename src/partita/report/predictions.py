"""Predictions for people: a table of bounds and estimates, and what is known of the estimates."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from partita.cost.interval import COVERAGE, NOT_SAID
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction
from partita.planner.model_limits import longest_context
from partita.report.tables import limit_text, plain_table
from partita.specs.profile import COVERAGES, Profile
from partita.specs.units import format_bytes, format_count, format_range, format_seconds

NO_PROFILE = "no profile for this cluster: bound only; `partita calibrate` makes one"
_PARTS = {
    "operation_seconds": "operations",
    "communication_seconds": "communication",
    "layer_seconds": "layers",
    "host_seconds": "host",
    "idle_seconds": "waiting for other stages",
}


def attention_split(prediction: Prediction) -> str:
    """What attention splits over which axes, once the batch is known: "batch over xyz"."""
    layout = prediction.layout
    parts = {
        "batch": layout.attn_b,
        "context": layout.attn_s,
        "query tokens": "".join(a for a in layout.attn_l if a not in layout.attn_s),
        "KV heads": layout.attn_k,
        "query heads": layout.attn_g,
    }
    size = prediction.setting.mesh.size
    named = {what: "".join(a for a in axes if size[a] > 1) for what, axes in parts.items()}
    return ", ".join(f"{what} over {axes}" for what, axes in named.items() if axes) or "nothing"


def prediction_table(found: list[Prediction], *, alone: bool = True) -> Table:
    """A column for each phase; all are on one cluster, so that all have an estimate or none has. `alone`:
    with the memory that each takes when no other phase is there."""
    table = plain_table("", *(p.phase for p in found))
    rows = [
        ("layout", [str(p.layout.roles) for p in found]),
        ("attention splits", [attention_split(p) for p in found]),
        ("batch", [str(p.batch) for p in found]),
        ("tokens a step", [f"{p.tokens_per_step:,}" for p in found]),
        ("stages", [_stages(p) for p in found]),
        ("prompt", [_portions(p) for p in found]),
        *_estimated(found),
        ("step, bound", [format_seconds(p.step_seconds) for p in found]),
        ("  compute", [format_seconds(float(p.bound.compute_seconds)) for p in found]),
        ("  memory", [format_seconds(float(p.bound.memory_seconds)) for p in found]),
        ("  communication", [format_seconds(float(p.bound.communication_seconds)) for p in found]),
        ("  waiting for other stages", [_wait(p) for p in found]),
        ("phase, bound", [format_seconds(p.total_seconds) for p in found]),
        ("limited by", [limit_text(p.bound.binds) for p in found]),
        *_merit(found),
        *(_alone(found) if alone else []),
    ]
    for name, cells in rows:
        if any(cells):
            table.add_row(name, *map(Text, cells))
    if found[0].padding:
        padded = ", ".join(f"{k} {v['from']} -> {v['to']}" for k, v in found[0].padding.items())
        more = format_count(found[0].padded_parameters)
        table.add_row("padding", Text(f"{padded}: {more} parameters more"))
    return table


def _estimated(found: list[Prediction]) -> list[tuple[str, list[str]]]:
    """The rows of the estimate; cells are empty where there is no estimate or a part takes no time."""
    parts = [estimated_parts(p) for p in found]
    names = dict.fromkeys(name for each in parts for name in each)
    return [
        ("step, estimated", [step_text(p.estimate) for p in found]),
        *((f"  {n}", [format_seconds(each[n]) if each[n] else "" for each in parts]) for n in names),
        ("phase, estimated", [phase_text(p.estimate) for p in found]),
    ]


def _merit(found: list[Prediction]) -> list[tuple[str, list[str]]]:
    """MFU and cost as estimated, and what the bound allows: beside them, or alone without an estimate."""
    most = [f"{p.bound_mfu:.1%}" for p in found]
    least = [f"{p.bound_chip_seconds_per_token * 1e3:.3g}" for p in found]
    if found[0].estimate is None:
        return [("MFU, at most", most), ("chip-ms per token, at least", least)]
    pairs = list(zip(found, most, least, strict=True))
    return [
        ("MFU, estimated", [f"{p.mfu:.1%} (at most {most})" for p, most, _ in pairs]),
        (
            "chip-ms per token, estimated",
            [f"{p.chip_seconds_per_token * 1e3:.3g} (at least {least})" for p, _, least in pairs],
        ),
    ]


def _alone(found: list[Prediction]) -> list[tuple[str, list[str]]]:
    return [
        ("memory per chip", [_memory(p) for p in found]),
        ("longest context", [_longest(p) for p in found]),
        ("largest batch", [format_count(p.max_batch) for p in found]),
    ]


def _longest(prediction: Prediction) -> str:
    setting = prediction.setting
    return format_count(longest_context(setting.model, prediction.max_context, setting.workload))


def _memory(prediction: Prediction) -> str:
    memory = prediction.memory_bytes
    names = ("weights", "kv", "activations", *(["runtime"] if memory["runtime"] else []))
    parts = ", ".join(f"{part} {format_bytes(memory[part])}" for part in names)
    return f"{format_bytes(memory['total'])} of {format_bytes(memory['capacity'])}: {parts}"


def _stages(prediction: Prediction) -> str:
    """Layers of each stage and the microbatches: "35, 35 and 35 layers, 3 microbatches of 2"."""
    setting = prediction.setting
    if setting.stages == 1:
        return ""
    *first, last = (f"{part.layers}" for part in setting.parts)
    count, size = prediction.run.microbatches
    return f"{', '.join(first)} and {last} layers, {count} microbatches of {size}"


def _wait(prediction: Prediction) -> str:
    return format_seconds(prediction.idle_seconds) if prediction.setting.stages > 1 else ""


def _portions(prediction: Prediction) -> str:
    """How much of a prompt is cached, and in how many steps the rest is read; empty for all at once."""
    workload = prediction.setting.workload
    if prediction.phase != "prefill" or (not workload.prefix and prediction.steps == 1):
        return ""
    cached = f"{workload.prefix:,} of {workload.prompt:,} tokens cached, " if workload.prefix else ""
    steps = f"in {prediction.steps:,} steps" if prediction.steps > 1 else "in 1 step"
    return f"{cached}{workload.new_tokens:,} read {steps}"


# -- estimates ----------------------------------------------------------------------------------------------


def step_text(found: PhaseEstimate | None) -> str:
    """The estimated time of a step with its range; empty where there is no estimate."""
    return "" if found is None else format_range(found.step_seconds, found.step_interval)


def phase_text(found: PhaseEstimate | None) -> str:
    """The estimated time of the whole phase with its range; empty where there is no estimate."""
    return "" if found is None else format_range(found.total_seconds, found.total_interval)


def estimated_parts(prediction: Prediction) -> dict[str, float]:
    """Estimated seconds of a step by what takes them; empty where there is no estimate."""
    found = prediction.estimate
    return {} if found is None else {_PARTS[name]: each for name, each in found.step_parts.items()}


def estimate_note(found: Sequence[Prediction]) -> Text:
    """The profile of phases on one cluster, what its range is, and in one sentence what it extrapolates."""
    estimates = [(p.phase, p.estimate) for p in found if p.estimate is not None]
    if not estimates:
        return Text(NO_PROFILE)
    profile = estimates[0][1].profile
    return Text(f"Estimated by profile {profile.name}; {_range(profile)}. {_beyond(estimates)}.")


def _range(profile: Profile) -> str:
    """What is known of how often measured times lie in the range."""
    if not profile.residuals:
        return "nothing was left out of its fit, so the range is a guess"
    if not profile.coverage:
        count = profile.held_out or len(profile.residuals)
        return f"a {COVERAGE:.0%} range, from {count} measurements left out of its fit"
    held = dict(zip(COVERAGES, profile.coverage, strict=True))[COVERAGE]
    return f"a {COVERAGE:.0%} range; {held:.0%} of the measurements left out of its fit lay in theirs"


def _beyond(estimates: Sequence[tuple[str, PhaseEstimate]]) -> str:
    """What lies outside the measurements that the profile was fitted to, by phase."""
    if not estimates[0][1].profile.region:
        return f"{NOT_SAID[0].upper()}{NOT_SAID[1:]}"
    beyond = {phase: estimate.interval.extrapolated for phase, estimate in estimates}
    said = ", ".join(f"{phase} ({'; '.join(sentences)})" for phase, sentences in beyond.items() if sentences)
    if said:
        return f"Extrapolated, so the range is wider: {said}"
    return "Nothing is extrapolated: all of it lies within what the profile was fitted to"
