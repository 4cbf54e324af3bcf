"""`explain`: every operation of a phase as a table, the paper's Figures 2 to 5 as text.

Knows nothing about how the numbers were made.
"""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from partita.cost.prediction import Prediction
from partita.report.expected import note, step_text
from partita.report.operations import operations
from partita.specs.units import format_bytes, format_count, format_seconds

LEGEND = (
    "B sequences, L new tokens, S cached tokens, E d_model, F d_ff, M matrices side by side, "
    "K KV heads, G query heads of each, D head dim, V vocabulary; "
    "E_x is split over axis x, partialsum-x is still to be summed over it. "
    "Bytes and FLOPs are one chip's, for one step; bound and share are of the least time they can take."
)
ESTIMATED_LEGEND = (
    "Estimated: of a collective what is not hidden behind operations; the column adds up to the step."
)
LATENT_LEGEND = (
    "Of latent attention: Q and C compressed queries and keys/values, P the rotary part of a head and D the "
    "rest, R = C P a cached row, U a head's value."
)


def explanation(prediction: Prediction) -> Group:
    """The table of `operations`, a line for each; with estimated times where there is a profile."""
    layout, setting, expected = prediction.layout, prediction.setting, prediction.estimate
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("operation", "sharding before -> after", "axes"):
        table.add_column(name, overflow="fold")
    more = () if expected is None else ("estimated",)
    for name in ("FLOPs", "memory", "sent", "bound", "share", *more):
        table.add_column(name, justify="right", no_wrap=True)
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
            *(() if expected is None else ("" if seconds is None else format_seconds(seconds),)),
        )
    estimated = "" if expected is None else f", estimated {step_text(expected)}"
    head = Text(
        f"{setting.model.name} on {setting.cluster.name}, mesh {setting.mesh}, {prediction.phase} in "
        f"{layout.roles}: {prediction.batch} sequences, step bound {format_seconds(prediction.step_seconds)}"
        f"{estimated}"
    )
    stored = [f"{name} {sharding}" for name, sharding in layout.storage.weights(setting.model).items()]
    legend = [LEGEND, *([] if setting.model.latent is None else [LATENT_LEGEND])]
    legend += [] if expected is None else [ESTIMATED_LEGEND]
    return Group(
        head,
        Text("weights stored as " + "; ".join(stored)),
        table,
        Text(" ".join(legend), style="dim"),
        note([prediction]),
    )
