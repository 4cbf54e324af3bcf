"""Figure C.1: MFU against latency of PaLM 8B, 62B and 540B, decode and prefill; Pareto frontiers."""

from __future__ import annotations

from partita.cost.prediction import Phase
from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Exhibit
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
from partita.report.reproduce.pricing import OUTPUT, Run, frontier
from partita.report.reproduce.published import published
from partita.specs import Format

TITLE = "MFU vs. latency for PaLM models: decode of 64 tokens, prefill of 2048"


def build() -> Exhibit:
    frontiers = {phase: _frontiers(phase) for phase in ("decode", "prefill")}
    table2 = published("table2")
    return Exhibit(
        name="figureC1",
        title=f"Figure C.1. {TITLE}",
        caption=(
            f"C chips, B batch. {WHERE} {BOUND} MFU counts 2 N FLOPs a token, the embedding's included; a "
            "prefill unembeds only the last token of a sequence, so its bound can pass 100% (the embedding "
            "is 12% of PaLM 8B).",
            "What is known of the original: at long decode latency 62B has a higher MFU than 540B, its "
            "8-way model parallelism against 64-way (seen in one secondary source). Its digits are not at "
            f"hand; the points shown are Table 2's ({table2.provenance}).",
        ),
        panels=tuple(
            Panel(
                title=title,
                x_label=x_label,
                y_label="MFU",
                series=(
                    *(_series(phase, *key, found) for key, found in frontiers[phase].items()),
                    _published(phase),
                ),
                x_scale="log",
                percent=True,
            )
            for phase, title, x_label in _PANELS
        ),
        tables=tuple(rows(f"Frontier, {phase}", frontiers[phase]) for phase, _, _ in _PANELS),
    )


_PANELS: tuple[tuple[Phase, str, str], ...] = (
    ("decode", "Decode: generating 64 tokens, context 2048", "Latency per generated token (ms)"),
    ("prefill", "Prefill: processing 2048 tokens", "Latency of the prefill (s)"),
)


def _frontiers(phase: Phase) -> dict[tuple[str, Format], list[Run]]:
    return {
        (model, weights): frontier(
            palm_runs(model, weights, phase), cost=lambda r: -r.mfu, latency=lambda r: r.seconds
        )
        for model in MODELS
        for weights in FORMATS
    }


def _series(phase: Phase, model: str, weights: Format, found: list[Run]) -> Series:
    latencies = [r.seconds_per_token * 1e3 if phase == "decode" else r.seconds for r in found]
    return series(model, weights, latencies, [r.mfu for r in found], labels(found))


def _published(phase: Phase) -> Series:
    points = [row for row in published("table2").rows if row["phase"] == phase]
    scale = 1e3 / OUTPUT if phase == "decode" else 1.0
    return Series(
        "PaLM 540B, Table 2",
        tuple(row["seconds"] * scale for row in points),
        tuple(row["mfu"] for row in points),
        "published",
        tuple(f"{row['weights']}, C:64 B:{row['batch']}" for row in points),
        colour=COLOURS["palm-540b"],
    )
