"""Figure B.1: prefill of one sequence of 32 to 1024 tokens, cost against latency."""

from __future__ import annotations

from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows
from partita.report.reproduce.palm_runs import COLOURS, LAYOUTS, MODELS, pretty
from partita.report.reproduce.pricing import TORI, Run, fastest, on_torus

TITLE = "Prefill at batch 1 of 32 to 1024 tokens, PaLM models"
LENGTHS = tuple(2**i for i in range(5, 11))
WEIGHTS = "int8"


def build() -> Exhibit:
    runs = {model: [_fastest(model, length) for length in LENGTHS] for model in MODELS}
    return Exhibit(
        name="figureB1",
        title=f"Figure B.1. {TITLE}",
        caption=(
            "int8 weights; each point on the number of chips, 4 to 256 TPU v4, that reads the sequence "
            f"fastest, in the fastest of the paper's layouts. Labels: chips and tokens (C, S). {BOUND}",
            "What is known of the original: prefill at batch 1 over lengths 32 to 1024 (seen in one "
            "secondary source). Its digits and its number of chips are not at hand, so these are "
            "predictions only.",
        ),
        panels=(
            Panel(
                title="Cost vs. latency",
                x_label="Latency of the prefill (ms)",
                y_label="Cost (chip-ms per token)",
                series=tuple(
                    Series(
                        f"{pretty(model)} {WEIGHTS}",
                        tuple(r.seconds * 1e3 for r in found),
                        tuple(r.chip_seconds_per_token * 1e3 for r in found),
                        labels=tuple(f"C:{r.chips} S:{r.tokens_each}" for r in found),
                        colour=COLOURS[model],
                    )
                    for model, found in runs.items()
                ),
                x_scale="log",
                y_scale="log",
            ),
            Panel(
                title="Latency vs. length",
                x_label="Sequence length (tokens)",
                y_label="Latency of the prefill (ms)",
                series=tuple(
                    Series(
                        f"{pretty(model)} {WEIGHTS}",
                        LENGTHS,
                        tuple(r.seconds * 1e3 for r in found),
                        colour=COLOURS[model],
                    )
                    for model, found in runs.items()
                ),
                x_scale="log2",
                y_scale="log",
                x_ticks=LENGTHS,
            ),
        ),
        tables=(_rows(runs),),
    )


def _fastest(model: str, length: int) -> Run:
    found = (
        fastest(
            on_torus(model, chips, batch=1, weights=WEIGHTS, prompt=length, output=1),
            "prefill",
            LAYOUTS["prefill"],
        )
        for chips in TORI
    )
    return min((r for r in found if r is not None), key=lambda r: r.seconds)


def _rows(runs: dict[str, list[Run]]) -> Rows:
    return Rows(
        "Fastest prefill of one sequence",
        (
            Column("model", "model"),
            Column("tokens", "tokens", "count"),
            Column("chips", "chips", "count"),
            Column("layout", "layout"),
            Column("bound_seconds", "prefill, bound", "seconds"),
            Column("bound_chip_seconds_per_token", "cost, chip-s per token, at least", "number"),
            Column("bound_mfu", "MFU, at most", "share"),
        ),
        tuple(
            {
                "model": model,
                "tokens": r.tokens_each,
                "chips": r.chips,
                "layout": str(r.prediction.layout.roles),
                "bound_seconds": r.seconds,
                "bound_chip_seconds_per_token": r.chip_seconds_per_token,
                "bound_mfu": r.mfu,
            }
            for model, found in runs.items()
            for r in found
        ),
    )
