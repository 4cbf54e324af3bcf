"""Tables 1, 2 and 3: longest contexts, and the scenarios of PaLM 540B and 62B."""

from __future__ import annotations

from typing import Any

from partita.cost.prediction import Phase
from partita.cost.roofline import context_for_kv_share
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.pricing import CONTEXT, OUTPUT, Run, on_torus, run
from partita.report.reproduce.published import published
from partita.specs import Format

KV_SHARE = 0.30
"""Of a chip's memory, for the cache (Table 1)."""

_VARIANTS = {
    "multihead": ("palm-540b-multihead", "ws2d/heads"),
    "baseline multiquery": ("palm-540b", "ws2d/heads"),
    "optimised multiquery": ("palm-540b", "ws2d/batch"),
}


def table1() -> Exhibit:
    known, rows = published("table1"), []
    for row in known.rows:
        model, layout = _VARIANTS[row["variant"]]
        predicted = _longest(model, layout, row["batch"])
        rows.append(
            {
                **row,
                "layout": layout,
                "predicted_max_context": predicted,
                "published_max_context": row["max_context"],
                "published_over_predicted": ratio(row["max_context"], predicted),
            }
        )
    columns = (
        Column("variant", "variant"),
        Column("head_dim", "head dim", "count"),
        Column("layout", "layout"),
        Column("batch", "batch", "count"),
        Column("predicted_max_context", "longest context, predicted", "count"),
        Column("published_max_context", "published", "count"),
        Column("published_over_predicted", "published / predicted", "ratio"),
    )
    return Exhibit(
        name="table1",
        title="Table 1. Longest context of PaLM 540B on 64 chips, 30% of memory for the KV cache",
        caption=(
            "A count of bytes, no time: 30% of 32 GiB over what one chip keeps for a position of every "
            "sequence, in bf16. Multihead pads 48 heads to 64, one a chip; published values are rounded.",
            known.credit,
        ),
        tables=(Rows("Tokens of context", columns, tuple(rows)),),
    )


def _longest(model: str, layout: str, batch: int) -> int:
    """Tokens, counted from what the cache of one position takes."""
    prediction = run(on_torus(model, 64, batch=batch, prompt=1, output=1), "decode", layout).prediction
    per_position = prediction.memory_bytes["kv"] / prediction.setting.workload.context
    return int(context_for_kv_share(prediction.setting.cluster.chip.hbm_bytes, KV_SHARE, per_position))


_SCENARIO = (
    Column("scenario", "scenario"),
    Column("chips", "chips", "count"),
    Column("batch", "batch", "count"),
    Column("layout", "layout"),
    Column("weights", "weights"),
    Column("bound_seconds", "latency, bound", "seconds"),
    Column("bound_mfu", "MFU, at most", "share"),
    Column("bound_chip_seconds_per_token", "chip-s per token, at least", "number"),
    Column("binds", "binds"),
)


def table2() -> Exhibit:
    known, predicted, compared = published("table2"), [], []
    for row in known.rows:
        layout = f"{row['ffn']}/{row['attention']}"
        r = _scenario("palm-540b", 64, row["phase"], row["batch"], row["weights"], layout)
        predicted.append(_row(row["scenario"], r))
        compared.append(
            {
                **predicted[-1],
                "published_seconds": row["seconds"],
                "published_over_bound": ratio(row["seconds"], r.seconds),
                "published_mfu": row["mfu"],
                "published_mfu_over_bound": ratio(row["mfu"], r.mfu),
            }
        )
    columns = (
        Column("scenario", "scenario"),
        Column("batch", "batch", "count"),
        Column("bound_seconds", "latency, bound", "seconds"),
        Column("published_seconds", "published latency", "seconds"),
        Column("published_over_bound", "published / bound", "ratio"),
        Column("bound_mfu", "MFU, at most", "share"),
        Column("published_mfu", "published MFU", "share"),
        Column("published_mfu_over_bound", "published / bound", "ratio"),
    )
    return Exhibit(
        name="table2",
        title="Table 2. PaLM 540B on 64 TPU v4 chips, context 2048: prefill of 2048 tokens, decode of 64",
        caption=(BOUND, known.credit),
        tables=(
            Rows("Published beside predicted", columns, tuple(compared)),
            Rows("Scenarios, predicted", _SCENARIO, tuple(predicted)),
        ),
    )


_SCENARIOS_62B: tuple[tuple[str, int, Phase, int, Format, str], ...] = (
    ("low-latency prefill", 16, "prefill", 1, "int8", "ws2d/heads"),
    ("low-latency decode", 16, "decode", 32, "int8", "ws2d/batch"),
    ("high-throughput prefill", 32, "prefill", 512, "bf16", "wg-xyz/batch"),
    ("high-throughput decode", 8, "decode", 512, "bf16", "ws2d/batch"),
)


def table3() -> Exhibit:
    rows = tuple(
        _row(name, _scenario("palm-62b", chips, phase, batch, weights, layout))
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
        tables=(Rows("Scenarios, predicted", (*_SCENARIO, Column("fits", "fits")), rows),),
    )


def _scenario(model: str, chips: int, phase: Phase, batch: int, weights: Format, layout: str) -> Run:
    prompt = CONTEXT if phase == "prefill" else CONTEXT - OUTPUT
    return run(on_torus(model, chips, batch=batch, weights=weights, prompt=prompt), phase, layout)


def _row(scenario: str, r: Run) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "chips": r.chips,
        "batch": r.batch,
        "layout": str(r.prediction.layout.roles),
        "weights": r.prediction.setting.formats.weights,
        "bound_seconds": r.seconds,
        "bound_mfu": r.mfu,
        "bound_chip_seconds_per_token": r.chip_seconds_per_token,
        "binds": r.prediction.bound.binds,
        "fits": r.prediction.fits,
    }
