"""PaLM 8B, 62B and 540B over chips, batches and weight formats: what Figures 1 and C.1 choose from.

The layouts are those of the paper's rule (section 4.1): prefill keeps the weights or gathers them, decode
keeps them in two dimensions; of these the fastest that fits.
"""

from __future__ import annotations

from functools import cache

from partita.cost.prediction import Phase
from partita.report.plots import Series
from partita.report.reproduce.exhibit import Column, Rows
from partita.report.reproduce.pricing import BATCHES, CONTEXT, OUTPUT, TORI, Run, fastest, on_torus
from partita.specs import Format

MODELS = ("palm-8b", "palm-62b", "palm-540b")
FORMATS: tuple[Format, ...] = ("int8", "bf16")
COLOURS = {model: i for i, model in enumerate(MODELS)}
LAYOUTS: dict[Phase, tuple[str, ...]] = {
    "prefill": ("ws2d/heads", "wg-x/batch", "wg-xy/batch", "wg-xyz/batch"),
    "decode": ("ws2d/heads", "ws2d/batch"),
}
WHERE = (
    "Chips: 4 to 256 TPU v4 in the authors' meshes; batches 1 to 1024; of each the fastest of the paper's "
    "layouts that fits. Decode writes 64 tokens at a context that ends at 2048, prefill reads 2048 tokens."
)


@cache
def palm_runs(model: str, weights: Format, phase: Phase) -> tuple[Run, ...]:
    """Every number of chips and batch that fits."""
    prompt = CONTEXT if phase == "prefill" else CONTEXT - OUTPUT
    settings = (
        on_torus(model, chips, batch=batch, weights=weights, prompt=prompt)
        for chips in TORI
        for batch in BATCHES
    )
    runs = (fastest(setting, phase, LAYOUTS[phase]) for setting in settings)
    return tuple(r for r in runs if r is not None)


def pretty(model: str) -> str:
    """The paper's name of a model: "PaLM 540B"."""
    names = {"palm": "PaLM", "mt-nlg": "MT-NLG"}
    family, _, size = model.rpartition("-")
    return f"{names[family]} {size.upper()}"


def series(model: str, weights: Format, x: list[float], y: list[float], labels: list[str]) -> Series:
    """A frontier: a colour a model, dashed where weights are bf16."""
    return Series(
        label=f"{pretty(model)} {weights}",
        x=tuple(x),
        y=tuple(y),
        labels=tuple(labels),
        colour=COLOURS[model],
        dashed=weights == "bf16",
    )


def labels(runs: list[Run]) -> list[str]:
    """Chips and batch, as the paper labels points: of the first, the last and every third between."""
    last = len(runs) - 1
    return [f"C:{r.chips} B:{r.batch}" if i in (0, last) or i % 3 == 0 else "" for i, r in enumerate(runs)]


def rows(title: str, frontiers: dict[tuple[str, Format], list[Run]]) -> Rows:
    """Every point of some frontiers."""
    return Rows(
        title,
        (
            Column("model", "model"),
            Column("weights", "weights"),
            Column("chips", "chips", "count"),
            Column("batch", "batch", "count"),
            Column("layout", "layout"),
            Column("bound_seconds", "phase, bound", "seconds"),
            Column("bound_seconds_per_token", "per token, bound", "seconds"),
            Column("bound_chip_seconds_per_token", "cost, chip-s per token, at least", "number"),
            Column("bound_mfu", "MFU, at most", "share"),
        ),
        tuple(
            {
                "model": model,
                "weights": weights,
                "chips": r.chips,
                "batch": r.batch,
                "layout": str(r.prediction.layout.roles),
                "bound_seconds": r.seconds,
                "bound_seconds_per_token": r.seconds_per_token,
                "bound_chip_seconds_per_token": r.chip_seconds_per_token,
                "bound_mfu": r.mfu,
            }
            for (model, weights), found in frontiers.items()
            for r in found
        ),
    )
