"""Tables 2 and 3: the paper's scenarios of PaLM 540B and 62B, low latency and high throughput."""

from __future__ import annotations

from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, ExhibitTable, columns, ratio
from partita.report.reproduce.pricing import PROMPTS, Run, on_torus, run
from partita.report.reproduce.published import published
from partita.specs import Format
from partita.specs.profile import Phase

_PREDICTED = columns(
    *("scenario", "chips", "batch", "layout", "weights", "bound_seconds", "bound_mfu"),
    *("bound_chip_seconds_per_token", "binds"),
    bound_seconds="latency, bound",
    bound_chip_seconds_per_token="chip-s per token, at least",
)
_COMPARED = columns(
    *("scenario", "batch", "bound_seconds", "published_seconds", "published_over_bound"),
    *("bound_mfu", "published_mfu", Column("published_mfu_over_bound", "published / bound", "ratio")),
    bound_seconds="latency, bound",
    published_seconds="published latency",
)
_SCENARIOS_62B: tuple[tuple[str, int, Phase, int, Format, str], ...] = (
    ("low-latency prefill", 16, "prefill", 1, "int8", "ws2d/heads"),
    ("low-latency decode", 16, "decode", 32, "int8", "ws2d/batch"),
    ("high-throughput prefill", 32, "prefill", 512, "bf16", "wg-xyz/batch"),
    ("high-throughput decode", 8, "decode", 512, "bf16", "ws2d/batch"),
)


def table2() -> Exhibit:
    """PaLM 540B on 64 chips."""
    known, rows = published("table2"), []
    for row in known.rows:
        layout = f"{row['ffn']}/{row['attention']}"
        r = _run("palm-540b", 64, row["phase"], row["batch"], row["weights"], layout)
        rows.append(
            {
                "scenario": row["scenario"],
                **r.row(),
                "published_seconds": row["seconds"],
                "published_over_bound": ratio(row["seconds"], r.seconds),
                "published_mfu": row["mfu"],
                "published_mfu_over_bound": ratio(row["mfu"], r.mfu),
            }
        )
    return Exhibit(
        name="table2",
        title="Table 2. PaLM 540B on 64 TPU v4 chips, context 2048: prefill of 2048 tokens, decode of 64",
        caption=(BOUND, known.credit),
        tables=(
            ExhibitTable("Published beside predicted", _COMPARED, tuple(rows)),
            ExhibitTable("Scenarios, predicted", _PREDICTED, tuple(rows)),
        ),
    )


def table3() -> Exhibit:
    """PaLM 62B on 8 to 32 chips."""
    rows = tuple(
        {"scenario": name, **_run("palm-62b", chips, phase, batch, weights, layout).row()}
        for name, chips, phase, batch, weights, layout in _SCENARIOS_62B
    )
    return Exhibit(
        name="table3",
        title="Table 3. PaLM 62B on TPU v4 chips, context 2048: prefill of 2048 tokens, decode of 64",
        caption=(
            BOUND,
            "Published: no digits of Table 3 are at hand, so these are predictions only. The settings are "
            "recalled; of them only the 8-way split of the high-throughput decode is seen in a secondary "
            "source.",
        ),
        tables=(ExhibitTable("Scenarios, predicted", (*_PREDICTED, *columns("fits")), rows),),
    )


def _run(model: str, chips: int, phase: Phase, batch: int, weights: Format, layout: str) -> Run:
    return run(on_torus(model, chips, batch=batch, weights=weights, prompt=PROMPTS[phase]), phase, layout)
