"""Figure 8: decode latency by context of an 8-layer PaLM 540B, for three ways to keep keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from partita.report.plots import Panel, Rule, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows
from partita.report.reproduce.pricing import Run, on_torus, run
from partita.specs import catalogue_model

TITLE = "Decode latency vs. context, 8-layer PaLM 540B, 64 chips, batch 256"
BATCH, LAYERS = 256, 8
CONTEXTS = (128, 512, 2048, 8192, 16384, 32768, 65536, 131072)
FULL_LIMIT = 512
"""The paper: in contexts above it the full model does not fit with multihead or baseline multiquery."""


@dataclass(frozen=True)
class Variant:
    """How attention keeps keys and values."""

    label: str
    model: str
    layout: str

    def run(self, context: int, layers: int | None = None) -> Run:
        """The decode step whose cache reaches `context`; of the whole model, or of so many layers."""
        model = catalogue_model(self.model)
        if layers:
            model = model.model_copy(update={"layers": layers})
        return run(on_torus(model, 64, batch=BATCH, prompt=context - 1, output=1), "decode", self.layout)


VARIANTS = (
    Variant("Multihead, over heads", "palm-540b-multihead", "ws2d/heads"),
    Variant("Baseline multiquery, over heads", "palm-540b", "ws2d/heads"),
    Variant("Optimised multiquery, over batch", "palm-540b", "ws2d/batch"),
)


def build() -> Exhibit:
    full = {variant: variant.run(2048).prediction.max_context for variant in VARIANTS}
    runs = {variant: [variant.run(context, LAYERS) for context in CONTEXTS] for variant in VARIANTS}
    return Exhibit(
        name="figure8",
        title=f"Figure 8. {TITLE}",
        caption=(
            "One decode step at each context; bf16 weights, 2D weight-stationary; the multihead variant "
            "has heads of 128, multiquery of 256, so that parameters stay the same. Lines end where even 8 "
            f"layers do not fit; hollow: the full 118 layers do not fit. {BOUND}",
            f"Dotted: the paper says that above {FULL_LIMIT} tokens of context the full model does not fit "
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
                    _series(i, variant.label, full[variant], runs[variant])
                    for i, variant in enumerate(VARIANTS)
                ),
                rules=(Rule("x", FULL_LIMIT, "118 layers: the paper's limit", "end"),),
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


def _series(colour: int, label: str, full: int, runs: list[Run]) -> Series:
    fitting = [r for r in runs if r.prediction.fits]
    return Series(
        label,
        tuple(_context(r) for r in fitting),
        tuple(r.seconds * 1e3 for r in fitting),
        hollow=tuple(_context(r) > full for r in fitting),
        colour=colour,
    )


def _limits(full: dict[Variant, int]) -> Rows:
    return Rows(
        "Longest context of all 118 layers, batch 256",
        (
            Column("variant", "variant"),
            Column("max_context", "longest context that fits", "count"),
            Column("published_max_context", "the paper's statement", "count"),
        ),
        tuple(
            {
                "variant": variant.label,
                "max_context": longest,
                "published_max_context": FULL_LIMIT if variant.layout == "ws2d/heads" else None,
            }
            for variant, longest in full.items()
        ),
    )


def _steps(full: dict[Variant, int], runs: dict[Variant, list[Run]]) -> Rows:
    return Rows(
        "A decode step of 8 layers",
        (
            Column("variant", "variant"),
            Column("context", "context", "count"),
            Column("bound_seconds", "step, bound", "seconds"),
            Column("kv_seconds", "reading the cache", "seconds"),
            Column("fits_8_layers", "8 layers fit"),
            Column("fits_118_layers", "118 layers fit"),
        ),
        tuple(
            {
                "variant": variant.label,
                "context": _context(r),
                "bound_seconds": r.seconds,
                "kv_seconds": float(r.prediction.bound.kv_seconds),
                "fits_8_layers": r.prediction.fits,
                "fits_118_layers": _context(r) <= full[variant],
            }
            for variant, found in runs.items()
            for r in found
        ),
    )
