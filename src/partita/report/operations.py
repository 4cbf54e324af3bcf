"""Every operation of a step with its counts, its seconds by the bound, and its seconds as estimated.

Both columns add up to the step's: what is no operation (layers' time that no count explains, the host, what a
pipeline stage waits) has rows of its own. Knows nothing about how rows are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.cost.estimate import message_seconds, operation_seconds, transfer_seconds
from partita.cost.ledger import Entry, plain_number
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction
from partita.cost.roofline import Peaks, communication_seconds

Row = dict[str, Any]


def operations(prediction: Prediction) -> list[Row]:
    """One row an operation, repeats counted: shardings, counts, seconds by the bound and as estimated.

    By the bound an operation's time is its communication and its part of whatever binds the step's
    arithmetic, compute or memory. `estimated_seconds` is None where there is no estimate; of a collective it
    is start, hops, and the part of its bytes' time that is not hidden. Of a pipeline all are the longest
    stage's, and it waits for the rest of the step, in a row of its own. `share` is of the bound.
    """
    peaks, whole = prediction.setting.peaks, prediction.step_seconds
    by_compute = bool(prediction.bound.compute_seconds >= prediction.bound.memory_seconds)
    entries = prediction.step.ledger.entries
    expected = prediction.estimate
    estimated = None if expected is None else _estimated(expected, peaks, entries)
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
                "memory_bytes": plain_number((entry.weight_bytes + entry.kv_bytes) * entry.repeat),
                "sent_bytes": float(entry.sent_bytes * entry.repeat),
                "messages": entry.messages * entry.repeat,
                "bound_seconds": seconds,
                "share": seconds / whole if whole else 0.0,
                "estimated_seconds": None if estimated is None else estimated[place],
            }
        )
    if expected is not None:
        rows += _beside_operations(expected, sum(estimated or ()))
    if prediction.setting.stages > 1:
        waits = None if expected is None else expected.step_parts["idle_seconds"]
        rows.append(_row("pipeline", "wait", prediction.idle_seconds, waits))
        rows[-1]["share"] = prediction.idle_seconds / whole if whole else 0.0
    return rows


def _seconds(entry: Entry, peaks: Peaks, by_compute: bool) -> float:
    if entry.axes:
        return communication_seconds(entry, peaks)
    if by_compute:
        return entry.needed_flops / peaks.flops
    return (entry.weight_bytes + entry.kv_bytes) / peaks.memory_bytes


def _estimated(expected: PhaseEstimate, peaks: Peaks, entries: list[Entry]) -> list[float] | None:
    """Of each entry; None where the profile's runtime cuts the batch so that its operations differ."""
    timed, profile, parts = expected.ledger.entries, expected.profile, expected.parts
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


def _beside_operations(expected: PhaseEstimate, by_operation: float) -> Iterator[Row]:
    """What the estimate has beside its operations' `by_operation` seconds; nothing of it is in the bound."""
    layers, host = float(expected.parts.layer_seconds), expected.parts.host_seconds
    if not by_operation:
        busy = float(expected.parts.operation_seconds + expected.parts.communication_seconds)
        yield _row("pipeline", "operations, as the runtime cuts the batch", 0.0, busy)
        by_operation = busy
    if layers:
        yield _row("layer", "time that no count explains", 0.0, layers)
    if host:
        yield _row("host", "each step", 0.0, host)
    held = float(expected.parts.device_seconds) - by_operation - layers
    if held > 1e-9 * expected.step_seconds:
        yield _row("step", "held at the bound", 0.0, held)


def _row(scope: str, op: str, bound_seconds: float, estimated_seconds: float | None) -> Row:
    """Of time that is no operation's."""
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
