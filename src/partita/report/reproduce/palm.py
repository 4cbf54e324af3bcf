"""Figures 1, B.1 and C.1: PaLM 8B, 62B and 540B over chips, batches, lengths and weight formats.

The layouts are those of the paper's rule (section 4.1): prefill keeps the weights or gathers them, decode
keeps them in two dimensions; of these the fastest that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from partita.planner.frontier import undominated
from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import BOUND, Exhibit, ExhibitTable, columns, ratio
from partita.report.reproduce.pricing import CONTEXT, OUTPUT, PROMPTS, TORI, Run, fastest, on_torus, run
from partita.report.reproduce.published import published
from partita.specs import Format
from partita.specs.profile import Phase

Frontiers = dict[tuple[str, Format], list[Run]]
"""The runs that no other beats, by model and weight format and by rising latency."""

MODELS = {"palm-8b": "PaLM 8B", "palm-62b": "PaLM 62B", "palm-540b": "PaLM 540B"}
FORMATS: tuple[Format, ...] = ("int8", "bf16")
BATCHES = tuple(2**i for i in range(11))
LENGTHS = tuple(2**i for i in range(5, 11))
COLOURS = {model: i for i, model in enumerate(MODELS)}
LAYOUTS: dict[Phase, tuple[str, ...]] = {
    "prefill": ("ws2d/heads", "wg-x/batch", "wg-xy/batch", "wg-xyz/batch"),
    "decode": ("ws2d/heads", "ws2d/batch"),
}
_PANELS: tuple[tuple[Phase, str, str], ...] = (
    ("decode", "Decode: generating 64 tokens, context 2048", "Latency per generated token (ms)"),
    ("prefill", "Prefill: processing 2048 tokens", "Latency of the prefill (s)"),
)
_COST = "Cost (chip-ms per token)"
_WHERE = (
    "Chips: 4 to 256 TPU v4 in the authors' meshes; batches 1 to 1024; of each the fastest of the paper's "
    "layouts that fits. Decode writes 64 tokens at a context that ends at 2048, prefill reads 2048 tokens."
)


@cache
def palm_runs(model: str, weights: Format, phase: Phase) -> tuple[Run, ...]:
    """Every number of chips and batch that fits."""
    settings = (
        on_torus(model, chips, batch=batch, weights=weights, prompt=PROMPTS[phase])
        for chips in TORI
        for batch in BATCHES
    )
    runs = (fastest(setting, phase, LAYOUTS[phase]) for setting in settings)
    return tuple(r for r in runs if r is not None)


def pareto(runs: Iterable[Run], cost: Callable[[Run], float]) -> list[Run]:
    """The runs that no other beats in latency or cost without losing in the other, by rising latency."""
    return [r for *_, r in undominated((r.seconds, cost(r), r) for r in runs)]


def _frontiers(cost: Callable[[Run], float]) -> dict[Phase, Frontiers]:
    """Every phase's, model's and format's frontier of latency and `cost`."""
    return {
        phase: {
            (model, weights): pareto(palm_runs(model, weights, phase), cost)
            for model in MODELS
            for weights in FORMATS
        }
        for phase, _, _ in _PANELS
    }


def _curves(phase: Phase, frontiers: Frontiers, y: Callable[[Run], float]) -> list[Series]:
    """A colour for each model, dashed in bf16; x is milliseconds a token, or seconds of the prefill."""
    return [
        Series(
            label=f"{MODELS[model]} {weights}",
            x=tuple(r.seconds_per_token * 1e3 if phase == "decode" else r.seconds for r in runs),
            y=tuple(map(y, runs)),
            labels=_labels(runs),
            colour=COLOURS[model],
            dashed=weights == "bf16",
        )
        for (model, weights), runs in frontiers.items()
    ]


def _labels(runs: list[Run]) -> tuple[str, ...]:
    """Chips and batch, as the paper labels points: of the first, the last and every third between."""
    shown = {0, len(runs) - 1, *range(0, len(runs), 3)}
    return tuple(f"C:{r.chips} B:{r.batch}" if i in shown else "" for i, r in enumerate(runs))


def _frontier_table(phase: Phase, frontiers: Frontiers) -> ExhibitTable:
    """Every point of the frontiers."""
    return ExhibitTable(
        f"Frontier, {phase}",
        columns(
            *("model", "weights", "chips", "batch", "layout", "bound_seconds", "bound_seconds_per_token"),
            *("bound_chip_seconds_per_token", "bound_mfu"),
            bound_seconds="phase, bound",
        ),
        tuple(r.row() for runs in frontiers.values() for r in runs),
    )


# -- Figure 1 -----------------------------------------------------------------------------------------------


def figure1() -> Exhibit:
    """Cost against latency, decode and prefill; Pareto frontiers."""
    frontiers = _frontiers(lambda r: r.chip_seconds_per_token)
    text, table2 = published("figure1"), published("table2")
    return Exhibit(
        name="figure1",
        title="Figure 1. Cost vs. latency for PaLM models: decode of 64 tokens, prefill of 2048",
        caption=(
            f"C chips, B batch. {_WHERE} {BOUND}",
            f"{text.credit} Decode at batch 512 and both prefills are Table 2's ({table2.provenance}). "
            "The other points of the paper's curves have no published digits.",
        ),
        panels=tuple(
            Panel(
                title=title,
                x_label=x_label,
                y_label=_COST,
                series=(
                    *_curves(phase, frontiers[phase], lambda r: r.chip_seconds_per_token * 1e3),
                    _published_costs(phase),
                ),
                x_scale="log",
                y_scale="log",
            )
            for phase, title, x_label in _PANELS
        ),
        tables=(_compared(), *(_frontier_table(phase, found) for phase, found in frontiers.items())),
    )


def _measured() -> list[dict]:
    """Published points of both panels, with the seconds of the whole phase."""
    found = [
        {"phase": "decode", "seconds": row["milliseconds_per_token"] * OUTPUT / 1e3, **row}
        for row in published("figure1").rows
    ]
    return found + [row for row in published("table2").rows if row["batch"] != 64]


def _published_costs(phase: Phase) -> Series:
    points = [row for row in _measured() if row["phase"] == phase]
    if phase == "decode":
        x = [row["seconds"] / OUTPUT * 1e3 for row in points]
        cost = [64 * at / row["batch"] for at, row in zip(x, points, strict=True)]
    else:
        x = [row["seconds"] for row in points]
        cost = [64e3 * row["seconds"] / (row["batch"] * CONTEXT) for row in points]
    return _published_series("PaLM 540B", points, x, cost)


def _published_series(label: str, points: list[dict], x: list[float], y: list[float]) -> Series:
    texts = tuple(f"{row['weights']}, C:64 B:{row['batch']}" for row in points)
    return Series(label, tuple(x), tuple(y), "published", texts, colour=COLOURS["palm-540b"])


def _compared() -> ExhibitTable:
    found = []
    for row in _measured():
        phase: Phase = row["phase"]
        prompt, weights = PROMPTS[phase], row["weights"]
        setting = on_torus("palm-540b", 64, batch=row["batch"], weights=weights, prompt=prompt)
        r = run(setting, phase, f"{row.get('ffn', 'ws2d')}/{row.get('attention', 'batch')}")
        seconds = row["seconds"]
        found.append(
            {**r.row(), "published_seconds": seconds, "published_over_bound": ratio(seconds, r.seconds)}
        )
    return ExhibitTable(
        "PaLM 540B on 64 chips: published points",
        columns(
            *("phase", "weights", "batch", "layout", "bound_seconds"),
            *("published_seconds", "published_over_bound"),
            bound_seconds="phase, bound",
        ),
        tuple(found),
    )


# -- Figure C.1 ---------------------------------------------------------------------------------------------


def figure_c1() -> Exhibit:
    """MFU against latency, decode and prefill; Pareto frontiers."""
    frontiers = _frontiers(lambda r: -r.mfu)
    return Exhibit(
        name="figureC1",
        title="Figure C.1. MFU vs. latency for PaLM models: decode of 64 tokens, prefill of 2048",
        caption=(
            f"C chips, B batch. {_WHERE} {BOUND} MFU counts 2 N FLOPs a token, the embedding's included; a "
            "prefill unembeds only the last token of a sequence, so its bound can pass 100% (the embedding "
            "is 12% of PaLM 8B).",
            "What is known of the original: at long decode latency 62B has a higher MFU than 540B, its "
            "8-way model parallelism against 64-way (seen in one secondary source). Its digits are not at "
            f"hand; the points shown are Table 2's ({published('table2').provenance}).",
        ),
        panels=tuple(
            Panel(
                title=title,
                x_label=x_label,
                y_label="MFU",
                series=(*_curves(phase, frontiers[phase], lambda r: r.mfu), _published_mfus(phase)),
                x_scale="log",
                percent=True,
            )
            for phase, title, x_label in _PANELS
        ),
        tables=tuple(_frontier_table(phase, found) for phase, found in frontiers.items()),
    )


def _published_mfus(phase: Phase) -> Series:
    points = [row for row in published("table2").rows if row["phase"] == phase]
    scale = 1e3 / OUTPUT if phase == "decode" else 1.0
    x = [row["seconds"] * scale for row in points]
    return _published_series("PaLM 540B, Table 2", points, x, [row["mfu"] for row in points])


# -- Figure B.1 ---------------------------------------------------------------------------------------------


def figure_b1() -> Exhibit:
    """Prefill of one sequence of 32 to 1024 tokens in int8, cost against latency."""
    runs = {model: [_fastest_prefill(model, length) for length in LENGTHS] for model in MODELS}
    return Exhibit(
        name="figureB1",
        title="Figure B.1. Prefill at batch 1 of 32 to 1024 tokens, PaLM models",
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
                y_label=_COST,
                series=tuple(
                    Series(
                        f"{MODELS[model]} int8",
                        tuple(r.seconds * 1e3 for r in found),
                        tuple(r.chip_seconds_per_token * 1e3 for r in found),
                        labels=tuple(f"C:{r.chips} S:{r.tokens}" for r in found),
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
                        f"{MODELS[model]} int8",
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
        tables=(
            ExhibitTable(
                "Fastest prefill of one sequence",
                columns(
                    *("model", "tokens", "chips", "layout"),
                    *("bound_seconds", "bound_chip_seconds_per_token", "bound_mfu"),
                    bound_seconds="prefill, bound",
                ),
                tuple(r.row() for found in runs.values() for r in found),
            ),
        ),
    )


def _fastest_prefill(model: str, length: int) -> Run:
    """The fastest prefill of one sequence, over all numbers of chips."""
    settings = (on_torus(model, chips, batch=1, weights="int8", prompt=length, output=1) for chips in TORI)
    found = (fastest(setting, "prefill", LAYOUTS["prefill"]) for setting in settings)
    return min((r for r in found if r is not None), key=lambda r: r.seconds)
