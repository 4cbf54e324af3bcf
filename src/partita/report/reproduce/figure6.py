"""Figure 6: decode latency of PaLM 540B by number of chips, weights split in one dimension or in two."""

from __future__ import annotations

from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.pricing import OUTPUT, Run, on_torus, run
from partita.report.reproduce.published import published

TITLE = "Decode latency per token vs. chip count, PaLM 540B, batch 512"
BATCH = 512
CHIPS = (64, 128, 256)
LAYOUTS = {"ws1d": "1D weight-stationary", "ws2d": "2D weight-stationary"}


def build() -> Exhibit:
    runs = {
        name: [run(on_torus("palm-540b", chips, batch=BATCH), "decode", f"{name}/batch") for chips in CHIPS]
        for name in LAYOUTS
    }
    (measured,) = (
        row for row in published("table2").rows if (row["phase"], row["batch"]) == ("decode", BATCH)
    )
    seconds = measured["seconds"] / OUTPUT
    return Exhibit(
        name="figure6",
        title=f"Figure 6. {TITLE}",
        caption=(
            f"bf16 weights, attention over the batch, 64 tokens at a context that ends at 2048. Chips in the "
            f"authors' meshes (4x4x4, 8x4x4, 4x8x8); fewer than 64 do not hold the weights. {BOUND}",
            "What is known of the original: both become limited by communication as chips are added, and "
            "2D is the better (seen in secondary sources). It has no published digits; the point shown is "
            f"Table 2's high-throughput decode ({published('table2').provenance}).",
        ),
        panels=(
            Panel(
                title="bf16 weights, context 2048",
                x_label="Chip count",
                y_label="Decode latency per token (ms)",
                series=(
                    *(
                        Series(label, CHIPS, tuple(r.seconds_per_token * 1e3 for r in runs[name]), colour=i)
                        for i, (name, label) in enumerate(LAYOUTS.items())
                    ),
                    *(
                        Series(
                            f"{label}: communication alone",
                            CHIPS,
                            tuple(_communication(r) * 1e3 for r in runs[name]),
                            colour=i,
                            dashed=True,
                        )
                        for i, (name, label) in enumerate(LAYOUTS.items())
                    ),
                    Series("Table 2, 2D", (64,), (seconds * 1e3,), "published", ("6.0 s / 64",), colour=1),
                ),
                x_scale="log2",
                x_ticks=CHIPS,
            ),
        ),
        tables=(_parts(runs, seconds),),
    )


def _communication(r: Run) -> float:
    """Seconds of a step that are communication."""
    return float(r.prediction.bound.communication_seconds)


def _parts(runs: dict[str, list[Run]], measured: float) -> Rows:
    return Rows(
        "A decode step by part",
        (
            Column("layout", "layout"),
            Column("chips", "chips", "count"),
            Column("bound_seconds_per_token", "per token, bound", "seconds"),
            Column("compute_seconds", "compute", "seconds"),
            Column("memory_seconds", "memory", "seconds"),
            Column("communication_seconds", "communication", "seconds"),
            Column("published_seconds_per_token", "published", "seconds"),
            Column("published_over_bound", "published / bound", "ratio"),
        ),
        tuple(
            {
                "layout": name,
                "chips": r.chips,
                "bound_seconds_per_token": r.seconds_per_token,
                "compute_seconds": float(r.prediction.bound.compute_seconds),
                "memory_seconds": float(r.prediction.bound.memory_seconds),
                "communication_seconds": _communication(r),
                "published_seconds_per_token": measured if (name, r.chips) == ("ws2d", 64) else None,
                "published_over_bound": ratio(measured, r.seconds_per_token)
                if (name, r.chips) == ("ws2d", 64)
                else None,
            }
            for name, found in runs.items()
            for r in found
        ),
    )
