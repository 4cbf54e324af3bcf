"""`explain`: every operation of a phase as a table, the paper's Figures 2 to 5 as text.

Knows nothing about how the numbers were made.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from partita.cost.bound import Peaks, communication_seconds
from partita.cost.ledger import Entry, plain_number
from partita.cost.prediction import Prediction
from partita.specs.units import format_bytes, format_count, format_seconds

LEGEND = (
    "B sequences, L new tokens, S cached tokens, E d_model, F d_ff, M matrices side by side, "
    "K KV heads, G query heads of each, D head dim, V vocabulary; "
    "E_x is split over axis x, partialsum-x is still to be summed over it. "
    "Bytes and FLOPs are one chip's, for one step; time is the bound's."
)
LATENT_LEGEND = (
    "Of latent attention: Q and C compressed queries and keys/values, P the rotary part of a head and D the "
    "rest, R = C P a cached row, U a head's value."
)


def operations(prediction: Prediction) -> list[dict[str, Any]]:
    """One row an operation, repeats counted: sharding before and after, counts, bound seconds, share.

    An operation's time is its communication and its part of whatever binds the step's arithmetic, compute
    or memory. Of a pipeline these are the longest stage's, and it waits for the rest of the step, in a last
    row: the times add up to the step's.
    """
    peaks, whole = prediction.setting.peaks, prediction.step_seconds
    by_compute = prediction.bound.compute_seconds >= prediction.bound.memory_seconds
    rows = []
    for entry in prediction.step.ledger.entries:
        seconds = float(_seconds(entry, peaks, bool(by_compute))) * entry.repeat
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
            }
        )
    if prediction.setting.stages > 1:
        rows.append(_wait(prediction.idle_seconds, whole))
    return rows


def _wait(seconds: float, whole: float) -> dict[str, Any]:
    """The row of what a pipeline stage waits for the others and the links between them."""
    none = dict.fromkeys(("flops", "memory_bytes", "sent_bytes", "messages"), 0)
    return {
        "scope": "pipeline",
        "op": "wait",
        "kind": "wait",
        "axes": "",
        "before": [],
        "after": "",
        "repeat": 1,
        **none,
        "bound_seconds": seconds,
        "share": seconds / whole if whole else 0.0,
    }


def _seconds(entry: Entry, peaks: Peaks, by_compute: bool) -> float:
    if entry.axes:
        return communication_seconds(entry, peaks)
    if by_compute:
        return entry.needed_flops / peaks.flops
    return (entry.weight_bytes + entry.kv_bytes) / peaks.memory_bytes


def explanation(prediction: Prediction) -> Group:
    """The table of `operations`, a line for each."""
    layout, setting = prediction.layout, prediction.setting
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("operation", "sharding before -> after", "axes"):
        table.add_column(name, overflow="fold")
    for name in ("FLOPs", "memory", "sent", "time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in operations(prediction):
        times = f" x{row['repeat']}" if row["repeat"] > 1 else ""
        table.add_row(
            Text(f"{row['scope']}: {row['op']}{times}"),
            Text(f"{', '.join(row['before'])} -> {row['after']}" if row["before"] else ""),
            Text(row["axes"]),
            format_count(row["flops"]) if row["flops"] else "",
            format_bytes(row["memory_bytes"]) if row["memory_bytes"] else "",
            format_bytes(row["sent_bytes"]) if row["sent_bytes"] else "",
            format_seconds(row["bound_seconds"]),
            f"{row['share']:.1%}",
        )
    head = Text(
        f"{setting.model.name} on {setting.cluster.name}, mesh {setting.mesh}, {prediction.phase} in "
        f"{layout.roles}: {prediction.batch} sequences, step bound {format_seconds(prediction.step_seconds)}"
    )
    stored = [f"{name} {sharding}" for name, sharding in layout.storage.weights(setting.model).items()]
    legend = LEGEND if setting.model.latent is None else f"{LEGEND} {LATENT_LEGEND}"
    return Group(head, Text("weights stored as " + "; ".join(stored)), table, Text(legend, style="dim"))
