"""Every operation of a phase with its shardings, counts and seconds: as rows, and as a table like the paper's
Figures 2 to 5 in text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.text import Text

from partita.cost.estimate import message_seconds, operation_seconds, transfer_seconds
from partita.cost.ledger import Entry
from partita.cost.number import plain
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction
from partita.cost.roofline import Peaks, communication_seconds
from partita.report.predictions import estimate_note, step_text
from partita.report.tables import plain_table
from partita.specs.units import format_bytes, format_count, format_seconds

Row = dict[str, Any]
"""One operation of a step, or other time of the step; its keys are those of `explain --json`."""

LEGEND = (
    "B sequences, L new tokens, S cached tokens, E d_model, F d_ff, M matrices side by side, "
    "K KV heads, G query heads of each, D head dim, V vocabulary; "
    "E_x is split over axis x, partialsum-x is still to be summed over it. "
    "Bytes and FLOPs are one chip's, for one step; bound and share are of the least time they can take."
)
ESTIMATED_LEGEND = (
    "Estimated, for a collective: what is not hidden behind operations; the column adds up to the step."
)
LATENT_LEGEND = (
    "Latent attention: Q and C compressed queries and keys/values, P the rotary part of a head and D the "
    "rest, R = C P a cached row, U a head's value."
)


def explanation(prediction: Prediction) -> Group:
    """The table of `operations`, a line for each; with estimated times where there is a profile."""
    layout, setting, estimate = prediction.layout, prediction.setting, prediction.estimate
    more = () if estimate is None else ("estimated",)
    numbers = ("FLOPs", "memory", "sent", "bound", "share", *more)
    texts = ("operation", "sharding before -> after", "axes")
    table = plain_table(*texts, *numbers, right=numbers, whole=numbers)
    for row in operations(prediction):
        times = f" x{row['repeat']}" if row["repeat"] > 1 else ""
        seconds = row["estimated_seconds"]
        table.add_row(
            Text(f"{row['scope']}: {row['op']}{times}"),
            Text(f"{', '.join(row['before'])} -> {row['after']}" if row["before"] else ""),
            Text(row["axes"]),
            format_count(row["flops"]) if row["flops"] else "",
            format_bytes(row["memory_bytes"]) if row["memory_bytes"] else "",
            format_bytes(row["sent_bytes"]) if row["sent_bytes"] else "",
            format_seconds(row["bound_seconds"]),
            f"{row['share']:.1%}",
            *(() if estimate is None else ("" if seconds is None else format_seconds(seconds),)),
        )
    estimated = "" if estimate is None else f", estimated {step_text(estimate)}"
    head = Text(
        f"{setting.model.name} on {setting.cluster.name}, mesh {setting.mesh}, {prediction.phase} in "
        f"{layout.roles}: {prediction.batch} sequences, step bound {format_seconds(prediction.step_seconds)}"
        f"{estimated}"
    )
    stored = [f"{name} {sharding}" for name, sharding in layout.storage.weights(setting.model).items()]
    legend = [LEGEND, *([] if setting.model.latent is None else [LATENT_LEGEND])]
    legend += [] if estimate is None else [ESTIMATED_LEGEND]
    return Group(
        head,
        Text("weights stored as " + "; ".join(stored)),
        table,
        Text(" ".join(legend), style="dim"),
        estimate_note([prediction]),
    )


def operations(prediction: Prediction) -> list[Row]:
    """A row for each operation with its repeats: shardings, counts, seconds by the bound and as estimated.

    Both columns of seconds add up to the step's, so time that is no operation's has rows of its own: what no
    count explains in a layer, the host, what a pipeline stage waits. By the bound an operation takes the time
    of its communication, or its part of the compute or the memory time, whichever is the longer of the step.
    `estimated_seconds` is None where there is no estimate; a collective takes its start, its hops, and the
    part of its bytes' time that is not hidden. The rows of a pipeline are those of its longest stage. `share`
    is the share of the step's bound.
    """
    peaks, whole = prediction.setting.peaks, prediction.step_seconds
    by_compute = bool(prediction.bound.compute_seconds >= prediction.bound.memory_seconds)
    entries = prediction.step.ledger.entries
    estimate = prediction.estimate
    estimated = None if estimate is None else _estimated(estimate, peaks, entries)
    rows = []
    for place, entry in enumerate(entries):
        seconds = float(_seconds(entry, peaks, by_compute)) * entry.repeat
        rows.append(
            {
                "scope": entry.scope,
                "op": entry.what or entry.kind,
                "kind": entry.kind,
                "axes": entry.axes,
                "before": [str(sharding) for sharding in entry.before],
                "after": str(entry.after),
                "repeat": entry.repeat,
                "flops": entry.flops * entry.repeat,
                "memory_bytes": plain((entry.weight_bytes + entry.kv_bytes) * entry.repeat),
                "sent_bytes": float(entry.sent_bytes * entry.repeat),
                "messages": entry.messages * entry.repeat,
                "bound_seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "estimated_seconds": None if estimated is None else estimated[place],
            }
        )
    if estimate is not None:
        rows += _beside_operations(estimate, sum(estimated or ()))
    if prediction.setting.stages > 1:
        waits = None if estimate is None else estimate.step_parts["idle_seconds"]
        rows.append(_row("pipeline", "wait", prediction.idle_seconds, waits))
        rows[-1]["share"] = prediction.idle_seconds / whole if whole else 0.0
    return rows


def _seconds(entry: Entry, peaks: Peaks, by_compute: bool) -> float:
    if entry.axes:
        return plain(communication_seconds(entry, peaks))
    if by_compute:
        return plain(entry.needed_flops / peaks.flops)
    return plain((entry.weight_bytes + entry.kv_bytes) / peaks.memory_bytes)


def _estimated(estimate: PhaseEstimate, peaks: Peaks, entries: list[Entry]) -> list[float] | None:
    """Seconds of each entry; None where the profile's runtime cuts the batch into other operations."""
    timed, profile, parts = estimate.ledger.entries, estimate.profile, estimate.parts
    if list(map(_name, timed)) != list(map(_name, entries)):
        return None
    sending = float(sum(parts.link_seconds.values()))
    shown = 1 - float(parts.hidden_seconds) / sending if sending else 1.0
    found = []
    for entry in timed:
        if entry.axes:
            seconds = transfer_seconds(entry, peaks.links, profile) * shown
            seconds = seconds + message_seconds(entry, peaks.links, profile)
        else:
            seconds = operation_seconds(entry, peaks, profile)
        found.append(float(seconds) * entry.repeat)
    return found


def _name(entry: Entry) -> tuple[str, str, str, str]:
    return entry.scope, entry.what, entry.kind, entry.axes


def _beside_operations(estimate: PhaseEstimate, by_operation: float) -> Iterator[Row]:
    """Time that the estimate has beside its operations' `by_operation` seconds; the bound has none of it."""
    layers, host = float(estimate.parts.layer_seconds), estimate.parts.host_seconds
    if not by_operation:
        busy = float(estimate.parts.operation_seconds + estimate.parts.communication_seconds)
        yield _row("pipeline", "operations, as the runtime cuts the batch", 0.0, busy)
        by_operation = busy
    if layers:
        yield _row("layer", "time that no count explains", 0.0, layers)
    if host:
        yield _row("host", "each step", 0.0, host)
    held = float(estimate.parts.device_seconds) - by_operation - layers
    if held > 1e-9 * estimate.step_seconds:
        yield _row("step", "held at the bound", 0.0, held)


def _row(scope: str, op: str, bound_seconds: float, estimated_seconds: float | None) -> Row:
    """A row for time that is no operation's."""
    none = dict.fromkeys(("flops", "memory_bytes", "sent_bytes", "messages"), 0)
    return {
        "scope": scope,
        "op": op,
        "kind": "wait",
        "axes": "",
        "before": [],
        "after": "",
        "repeat": 1,
        **none,
        "bound_seconds": bound_seconds,
        "share": 0.0,
        "estimated_seconds": estimated_seconds,
    }
