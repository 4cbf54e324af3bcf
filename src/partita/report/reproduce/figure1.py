"""Figure 1: cost against latency of PaLM 8B, 62B and 540B, decode and prefill; Pareto frontiers."""

from __future__ import annotations

from partita.cost.prediction import Phase
from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.palm_runs import (
    COLOURS,
    FORMATS,
    MODELS,
    WHERE,
    labels,
    palm_runs,
    rows,
    series,
)
from partita.report.reproduce.pricing import CONTEXT, OUTPUT, Run, frontier, on_torus, run
from partita.report.reproduce.published import published
from partita.specs import Format

TITLE = "Cost vs. latency for PaLM models: decode of 64 tokens, prefill of 2048"


def build() -> Exhibit:
    decode, prefill = _frontiers("decode"), _frontiers("prefill")
    text, table2 = published("figure1"), published("table2")
    return Exhibit(
        name="figure1",
        title=f"Figure 1. {TITLE}",
        caption=(
            f"C chips, B batch. {WHERE} {BOUND}",
            f"{text.credit} Decode at batch 512 and both prefills are Table 2's ({table2.provenance}). "
            "The other points of the paper's curves have no published digits.",
        ),
        panels=(
            Panel(
                title="Decode: generating 64 tokens, context 2048",
                x_label="Latency per generated token (ms)",
                y_label="Cost (chip-ms per token)",
                series=(
                    *(_series("decode", *key, found) for key, found in decode.items()),
                    *_published("decode"),
                ),
                x_scale="log",
                y_scale="log",
            ),
            Panel(
                title="Prefill: processing 2048 tokens",
                x_label="Latency of the prefill (s)",
                y_label="Cost (chip-ms per token)",
                series=(
                    *(_series("prefill", *key, found) for key, found in prefill.items()),
                    *_published("prefill"),
                ),
                x_scale="log",
                y_scale="log",
            ),
        ),
        tables=(
            _compared(),
            rows("Frontier, decode", decode),
            rows("Frontier, prefill", prefill),
        ),
    )


def _latency(phase: Phase, r: Run) -> float:
    """What the panel's x axis shows: milliseconds a token in decode, seconds in prefill."""
    return r.seconds_per_token * 1e3 if phase == "decode" else r.seconds


def _frontiers(phase: Phase) -> dict[tuple[str, Format], list[Run]]:
    return {
        (model, weights): frontier(
            palm_runs(model, weights, phase),
            cost=lambda r: r.chip_seconds_per_token,
            latency=lambda r: r.seconds,
        )
        for model in MODELS
        for weights in FORMATS
    }


def _series(phase: Phase, model: str, weights: Format, found: list[Run]) -> Series:
    return series(
        model,
        weights,
        [_latency(phase, r) for r in found],
        [r.chip_seconds_per_token * 1e3 for r in found],
        labels(found),
    )


def _measured() -> list[dict]:
    """Published points of both panels, with the seconds of the whole phase."""
    found = [
        {"phase": "decode", "seconds": row["milliseconds_per_token"] * OUTPUT / 1e3, **row}
        for row in published("figure1").rows
    ]
    return found + [row for row in published("table2").rows if row["batch"] != 64]


def _published(phase: Phase) -> list[Series]:
    points = [row for row in _measured() if row["phase"] == phase]
    if phase == "decode":
        x = [row["seconds"] / OUTPUT * 1e3 for row in points]
        cost = [64 * at / row["batch"] for at, row in zip(x, points, strict=True)]
    else:
        x = [row["seconds"] for row in points]
        cost = [64e3 * row["seconds"] / (row["batch"] * CONTEXT) for row in points]
    texts = tuple(f"{row['weights']}, C:64 B:{row['batch']}" for row in points)
    return [Series("PaLM 540B", tuple(x), tuple(cost), "published", texts, colour=COLOURS["palm-540b"])]


def _compared() -> Rows:
    found = []
    for row in _measured():
        phase: Phase = row["phase"]
        prompt = CONTEXT if phase == "prefill" else CONTEXT - OUTPUT
        setting = on_torus("palm-540b", 64, batch=row["batch"], weights=row["weights"], prompt=prompt)
        layout = f"{row.get('ffn', 'ws2d')}/{row.get('attention', 'batch')}"
        r = run(setting, phase, layout)
        found.append(
            {
                "phase": phase,
                "weights": row["weights"],
                "batch": row["batch"],
                "layout": layout,
                "bound_seconds": r.seconds,
                "published_seconds": row["seconds"],
                "published_over_bound": ratio(row["seconds"], r.seconds),
            }
        )
    return Rows(
        "PaLM 540B on 64 chips: published points",
        (
            Column("phase", "phase"),
            Column("weights", "weights"),
            Column("batch", "batch", "count"),
            Column("layout", "layout"),
            Column("bound_seconds", "phase, bound", "seconds"),
            Column("published_seconds", "published", "seconds"),
            Column("published_over_bound", "published / bound", "ratio"),
        ),
        tuple(found),
    )
