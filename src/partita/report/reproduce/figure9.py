"""Figure 9: MFU against total latency, 60 tokens in and 20 out, beside FasterTransformer."""

from __future__ import annotations

from partita.report.plots import Panel, Rule, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.published import published
from partita.report.reproduce.systems import SYSTEMS, Request, requests

TITLE = "MFU vs. total latency, 60 tokens in and 20 out, beside FasterTransformer"
PROMPT, OUTPUT = 60, 20


def build() -> Exhibit:
    found = {system: requests(system, PROMPT, OUTPUT) for system in SYSTEMS}
    most = published("maximum-mfu")
    names = {"tp16": "TP16", "tp32": "TP32", "ours": "64-way"}
    return Exhibit(
        name="figure9",
        title=f"Figure 9. {TITLE}",
        caption=(
            "Points are labelled with the batch. 64 TPU v4: 2D weight-stationary; A100-80GB, 8 a node with "
            "NVSwitch, one 200 Gb/s InfiniBand port a GPU: 1D (TP16, TP32), or 3 pipeline stages of 8 "
            f"(PP3/TP8). 16-bit weights, attention over heads; hollow points do not fit in memory. {BOUND}",
            "The original's points have no digits at hand, so these are predictions only. Dotted: the "
            f"highest MFU that the paper's text gives. {most.credit}",
        ),
        panels=(
            Panel(
                title="60 input tokens, 20 output tokens",
                x_label="Total latency (s)",
                y_label="MFU",
                series=tuple(
                    Series(
                        system.label,
                        tuple(r.seconds for r in runs),
                        tuple(r.mfu for r in runs),
                        labels=tuple(str(r.batch) for r in runs),
                        hollow=tuple(not r.fits for r in runs),
                        colour=i,
                    )
                    for i, (system, runs) in enumerate(found.items())
                ),
                rules=tuple(
                    Rule("y", row["mfu"], f"{names[row['system']]}: {row['mfu']:.0%}", "end")
                    for row in most.rows
                ),
                x_scale="log",
                percent=True,
            ),
        ),
        tables=(
            _maxima({s.key: runs for s, runs in found.items()}),
            _rows({s.label: r for s, r in found.items()}),
        ),
    )


def _maxima(found: dict[str, tuple[Request, ...]]) -> Rows:
    rows = []
    for row in published("maximum-mfu").rows:
        best = max((r for r in found[row["system"]] if r.fits), key=lambda r: r.mfu)
        rows.append(
            {
                "system": row["system"],
                "batch": best.batch,
                "bound_mfu": best.mfu,
                "published_mfu": row["mfu"],
                "published_over_bound": ratio(row["mfu"], best.mfu),
            }
        )
    return Rows(
        "Highest MFU (published: whatever input and output lengths; bound: 60 in, 20 out)",
        (
            Column("system", "system"),
            Column("batch", "batch of the bound", "count"),
            Column("bound_mfu", "MFU, at most", "share"),
            Column("published_mfu", "published", "share"),
            Column("published_over_bound", "published / bound", "ratio"),
        ),
        tuple(rows),
    )


def _rows(found: dict[str, tuple[Request, ...]]) -> Rows:
    return Rows(
        "60 tokens in, 20 out",
        (
            Column("system", "system"),
            Column("batch", "batch", "count"),
            Column("bound_seconds", "total, bound", "seconds"),
            Column("bound_mfu", "MFU, at most", "share"),
            Column("fits", "fits"),
        ),
        tuple(
            {
                "system": label,
                "batch": r.batch,
                "bound_seconds": r.seconds,
                "bound_mfu": r.mfu,
                "fits": r.fits,
            }
            for label, runs in found.items()
            for r in runs
        ),
    )
