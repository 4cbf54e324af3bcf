"""Figure 8 and Table 1: multihead, baseline and optimised multiquery attention in long contexts."""

from __future__ import annotations

from dataclasses import dataclass

from partita.cost.roofline import context_for_kv_share
from partita.report.plots import Panel, ReferenceLine, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, ExhibitTable, columns, ratio
from partita.report.reproduce.pricing import Run, on_torus, run
from partita.report.reproduce.published import published
from partita.specs import catalogue_model


@dataclass(frozen=True)
class Variant:
    """How attention keeps keys and values."""

    name: str
    label: str
    model: str
    layout: str


VARIANTS = (
    Variant("multihead", "Multihead, over heads", "palm-540b-multihead", "ws2d/heads"),
    Variant("baseline multiquery", "Baseline multiquery, over heads", "palm-540b", "ws2d/heads"),
    Variant("optimised multiquery", "Optimised multiquery, over batch", "palm-540b", "ws2d/batch"),
)

# -- Figure 8 -----------------------------------------------------------------------------------------------

BATCH, LAYERS = 256, 8
CONTEXTS = (128, 512, 2048, 8192, 16384, 32768, 65536, 131072)
_FULL_LIMIT = 512
"""The paper: in contexts above it the full model does not fit with multihead or baseline multiquery."""


def decode_step(variant: Variant, context: int, layers: int | None = None) -> Run:
    """The decode step whose cache reaches `context`; of the whole model, or of so many layers."""
    model = catalogue_model(variant.model)
    if layers:
        model = model.model_copy(update={"layers": layers})
    return run(on_torus(model, 64, batch=BATCH, prompt=context - 1, output=1), "decode", variant.layout)


def figure8() -> Exhibit:
    """Decode latency by context of an 8-layer PaLM 540B."""
    full = {variant: decode_step(variant, 2048).prediction.max_context for variant in VARIANTS}
    runs = {variant: [decode_step(variant, context, LAYERS) for context in CONTEXTS] for variant in VARIANTS}
    return Exhibit(
        name="figure8",
        title="Figure 8. Decode latency vs. context, 8-layer PaLM 540B, 64 chips, batch 256",
        caption=(
            "One decode step at each context; bf16 weights, 2D weight-stationary; the multihead variant "
            "has heads of 128, multiquery of 256, so that parameters stay the same. Lines end where even 8 "
            f"layers do not fit; hollow: the full 118 layers do not fit. {BOUND}",
            f"Dotted: the paper says that above {_FULL_LIMIT} tokens of context the full model does not fit "
            "with multihead or baseline multiquery (seen in secondary sources). It has no published digits "
            "of latency. The limits predicted here may use all memory a chip has beside weights and "
            "runtime.",
        ),
        panels=(
            Panel(
                title="8 layers, batch 256, bf16",
                x_label="Context length (tokens)",
                y_label="Latency per generated token (ms)",
                series=tuple(
                    _latencies(i, variant.label, full[variant], runs[variant])
                    for i, variant in enumerate(VARIANTS)
                ),
                lines=(ReferenceLine("x", _FULL_LIMIT, "118 layers: the paper's limit", "end"),),
                x_scale="log2",
                y_scale="log",
                x_ticks=CONTEXTS,
                headroom=0.25,
            ),
        ),
        tables=(_limits(full), _steps(full, runs)),
    )


def _context(r: Run) -> int:
    return r.prediction.setting.workload.context


def _latencies(colour: int, label: str, full: int, runs: list[Run]) -> Series:
    fitting = [r for r in runs if r.fits]
    return Series(
        label,
        tuple(_context(r) for r in fitting),
        tuple(r.seconds * 1e3 for r in fitting),
        hollow=tuple(_context(r) > full for r in fitting),
        colour=colour,
    )


def _limits(full: dict[Variant, int]) -> ExhibitTable:
    return ExhibitTable(
        "Longest context of all 118 layers, batch 256",
        columns(
            "variant",
            Column("max_context", "longest context that fits", "count"),
            "published_max_context",
            published_max_context="the paper's statement",
        ),
        tuple(
            {
                "variant": variant.label,
                "max_context": longest,
                "published_max_context": _FULL_LIMIT if variant.layout == "ws2d/heads" else None,
            }
            for variant, longest in full.items()
        ),
    )


def _steps(full: dict[Variant, int], runs: dict[Variant, list[Run]]) -> ExhibitTable:
    return ExhibitTable(
        "A decode step of 8 layers",
        columns(
            "variant",
            "context",
            "bound_seconds",
            Column("kv_seconds", "reading the cache", "seconds"),
            Column("fits_8_layers", "8 layers fit"),
            Column("fits_118_layers", "118 layers fit"),
            bound_seconds="step, bound",
        ),
        tuple(
            {
                **r.row(),
                "variant": variant.label,
                "kv_seconds": float(r.prediction.bound.kv_seconds),
                "fits_8_layers": r.fits,
                "fits_118_layers": _context(r) <= full[variant],
            }
            for variant, found in runs.items()
            for r in found
        ),
    )


# -- Table 1 ------------------------------------------------------------------------------------------------

_KV_SHARE = 0.30
"""The share of a chip's memory that the cache may take."""


def table1() -> Exhibit:
    """The longest context of PaLM 540B on 64 chips."""
    known, rows = published("table1"), []
    variants = {variant.name: variant for variant in VARIANTS}
    for row in known.rows:
        variant = variants[row["variant"]]
        predicted = _longest(variant, row["batch"])
        rows.append(
            {
                **row,
                "layout": variant.layout,
                "predicted_max_context": predicted,
                "published_max_context": row["max_context"],
                "published_over_predicted": ratio(row["max_context"], predicted),
            }
        )
    return Exhibit(
        name="table1",
        title="Table 1. Longest context of PaLM 540B on 64 chips, 30% of memory for the KV cache",
        caption=(
            "A count of bytes, no time: 30% of 32 GiB over what one chip keeps for a position of every "
            "sequence, in bf16. Multihead pads 48 heads to 64, one a chip; published values are rounded.",
            known.credit,
        ),
        tables=(
            ExhibitTable(
                "Tokens of context",
                columns(
                    "variant",
                    "head_dim",
                    "layout",
                    "batch",
                    Column("predicted_max_context", "longest context, predicted", "count"),
                    "published_max_context",
                    Column("published_over_predicted", "published / predicted", "ratio"),
                ),
                tuple(rows),
            ),
        ),
    )


def _longest(variant: Variant, batch: int) -> int:
    """Tokens, counted from what the cache of one position takes."""
    setting = on_torus(variant.model, 64, batch=batch, prompt=1, output=1)
    prediction = run(setting, "decode", variant.layout).prediction
    per_position = prediction.memory_bytes["kv"] / setting.workload.context
    return int(context_for_kv_share(setting.cluster.chip.hbm_bytes, _KV_SHARE, per_position))
