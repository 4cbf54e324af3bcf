"""Figure 7: MFU of PaLM 540B's prefill by tokens in the batch, weights kept or gathered."""

from __future__ import annotations

from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.pricing import CONTEXT, Run, on_torus, run
from partita.report.reproduce.published import published

TITLE = "Prefill MFU vs. tokens in the batch, PaLM 540B on 64 chips, length 2048"
BATCHES = tuple(2**i for i in range(10))
LAYOUTS = {
    "ws2d/heads": "2D weight-stationary",
    "wg-x/batch": "X weight-gathered",
    "wg-xy/batch": "XY weight-gathered",
    "wg-xyz/batch": "XYZ weight-gathered",
}


def build() -> Exhibit:
    runs = {layout: [_run(layout, batch) for batch in BATCHES] for layout in LAYOUTS}
    tokens = tuple(batch * CONTEXT for batch in BATCHES)
    measured = [row for row in published("table2").rows if row["phase"] == "prefill"]
    return Exhibit(
        name="figure7",
        title=f"Figure 7. {TITLE}",
        caption=(
            "bf16 weights, batches 1 to 512. Attention over heads where weights stay, over the batch where "
            f"they are gathered. Hollow points, read in one step, need more memory than a chip has. {BOUND}",
            "The paper ran XYZ at 512 x 2048 tokens. By its own formula the switch from XY to XYZ falls at "
            "16 d_ff = 1.18 million tokens for two matrices, at 1.77 million with SwiGLU's third: at 1.05 "
            "million XY moves less, so the bound sees it slightly ahead.",
            f"Points are Table 2's ({published('table2').provenance}); that at 2048 tokens ran int8 "
            "weights. The others of the original have no published digits.",
        ),
        panels=(
            Panel(
                title="64 TPU v4 chips, bf16 weights",
                x_label="Batch size (tokens)",
                y_label="MFU",
                series=(
                    *(
                        Series(
                            label,
                            tokens,
                            tuple(r.mfu for r in runs[layout]),
                            hollow=tuple(not r.prediction.fits for r in runs[layout]),
                            colour=i,
                        )
                        for i, (layout, label) in enumerate(LAYOUTS.items())
                    ),
                    *(
                        Series(
                            f"Table 2, {_colour_name(row)}",
                            (float(row["tokens"] * row["batch"]),),
                            (row["mfu"],),
                            "published",
                            (f"{row['mfu']:.0%}",),
                            colour=list(LAYOUTS).index(f"{row['ffn']}/{row['attention']}"),
                        )
                        for row in measured
                    ),
                ),
                x_scale="log2",
                x_ticks=tokens[::2] + tokens[-1:],
                percent=True,
            ),
        ),
        tables=(_rows(runs, measured),),
    )


def _run(layout: str, batch: int) -> Run:
    return run(on_torus("palm-540b", 64, batch=batch, prompt=CONTEXT), "prefill", layout)


def _colour_name(row: dict) -> str:
    return f"{LAYOUTS[row['ffn'] + '/' + row['attention']].split()[0]} {row['weights']}"


def _rows(runs: dict[str, list[Run]], measured: list[dict]) -> Rows:
    known = {
        (f"{row['ffn']}/{row['attention']}", row["batch"]): row["mfu"]
        for row in measured
        if row["weights"] == "bf16"
    }
    return Rows(
        "MFU by tokens",
        (
            Column("layout", "layout"),
            Column("batch", "batch", "count"),
            Column("tokens", "tokens", "count"),
            Column("bound_seconds", "prefill, bound", "seconds"),
            Column("bound_mfu", "MFU, at most", "share"),
            Column("fits", "fits"),
            Column("published_mfu", "published MFU", "share"),
            Column("published_over_bound", "published / bound", "ratio"),
        ),
        tuple(
            {
                "layout": layout,
                "batch": r.batch,
                "tokens": r.batch * CONTEXT,
                "bound_seconds": r.seconds,
                "bound_mfu": r.mfu,
                "fits": r.prediction.fits,
                "published_mfu": known.get((layout, r.batch)),
                "published_over_bound": ratio(known.get((layout, r.batch)), r.mfu),
            }
            for layout, found in runs.items()
            for r in found
        ),
    )
