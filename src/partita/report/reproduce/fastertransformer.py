"""Figure 9 and Tables D: the paper's comparison with FasterTransformer (section 5, appendix D), end to end.

The paper's runs are on 64 TPU v4, weights in two dimensions, attention over heads. FasterTransformer runs
MT-NLG 530B on A100-80GB, eight a node, split 16 or 32 ways in one dimension, or 8 ways in each of 3 pipeline
stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from partita.cost.prediction import Prediction, Setting, predict
from partita.cost.roofline import mfu
from partita.report.plots import Panel, ReferenceLine, Series
from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, ExhibitTable, columns, ratio
from partita.report.reproduce.pricing import TORI
from partita.report.reproduce.published import published
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


@dataclass(frozen=True)
class System:
    """A model on chips, split in one way in both phases."""

    key: str
    label: str
    model: str
    cluster: str
    mesh: str
    batches: tuple[int, ...]
    layout: str = "ws1d/heads"
    stages: int = 1


_TORUS = ("tpu-v4:" + "x".join(map(str, TORI[64])), "x=4,y=4,z=4")
_OURS = tuple(2**i for i in range(2, 11))
_THEIRS = tuple(2**i for i in range(9))
SYSTEMS = (
    System("ours-palm", "PaLM 540B, 64 TPU v4", "palm-540b", *_TORUS, _OURS, "ws2d/heads"),
    System("ours", "MT-NLG 530B, 64 TPU v4", "mt-nlg-530b", *_TORUS, _OURS, "ws2d/heads"),
    System("tp16", "MT-NLG 530B, 16 A100 TP16", "mt-nlg-530b", "a100-80g:2x8", "x=2,y=8", _THEIRS),
    System("tp32", "MT-NLG 530B, 32 A100 TP32", "mt-nlg-530b", "a100-80g:4x8", "x=4,y=8", _THEIRS),
    System(
        "pp3_tp8", "MT-NLG 530B, 24 A100 PP3/TP8", "mt-nlg-530b", "a100-80g:3x8", "x=8", _THEIRS, stages=3
    ),
)


@dataclass(frozen=True)
class BatchRun:
    """A batch read and answered, by the bounds of both phases."""

    prefill: Prediction
    decode: Prediction

    @property
    def batch(self) -> int:
        return self.decode.batch

    @property
    def seconds(self) -> float:
        return self.prefill.total_seconds + self.decode.total_seconds

    @property
    def fits(self) -> bool:
        return self.prefill.fits and self.decode.fits

    @property
    def mfu(self) -> float:
        """Over input and output tokens, as the paper counts it."""
        setting = self.decode.setting
        workload, chips = setting.workload, setting.cluster.chips
        tokens = self.batch * (workload.prompt + workload.output)
        return float(mfu(setting.model.parameters, tokens, chips, setting.peaks.flops, self.seconds))

    def row(self) -> dict[str, Any]:
        """What tables show of it, by the columns' keys."""
        return {
            "batch": self.batch,
            "bound_seconds": self.seconds,
            "bound_mfu": self.mfu,
            "fits": self.fits,
        }


@cache
def batch_runs(system: System, prompt: int, output: int) -> tuple[BatchRun, ...]:
    """Every batch of the system's, `prompt` tokens in and `output` out; the formats are 16 bits."""
    mesh, cluster = parse_mesh(system.mesh), parse_cluster(system.cluster)
    model, formats = catalogue_model(system.model), Formats(reduce="bf16")
    roles, found = parse_layout(system.layout, mesh.axes), []
    for batch in system.batches:
        workload = Workload(prompt=prompt, output=output, batch=batch)
        setting = Setting(model, cluster, mesh, formats, workload, system.stages)
        found.append(BatchRun(predict(setting, "prefill", roles), predict(setting, "decode", roles)))
    return tuple(found)


_TOTALS = columns(*("system", "batch", "bound_seconds", "bound_mfu", "fits"), bound_seconds="total, bound")

# -- Figure 9 -----------------------------------------------------------------------------------------------

LENGTHS = {"D.2": (20, 8), "D.3": (60, 20), "D.4": (128, 8)}
"""Tokens in and out of each table D; Figure 9 draws D.3."""


def figure9() -> Exhibit:
    """MFU against total latency, 60 tokens in and 20 out."""
    found = {system: batch_runs(system, *LENGTHS["D.3"]) for system in SYSTEMS}
    most = published("maximum-mfu")
    names = {"tp16": "TP16", "tp32": "TP32", "ours": "64-way"}
    return Exhibit(
        name="figure9",
        title="Figure 9. MFU vs. total latency, 60 tokens in and 20 out, beside FasterTransformer",
        caption=(
            "Points are labelled with the batch. 64 TPU v4: 2D weight-stationary; A100-80GB, 8 a node with "
            "NVSwitch, one 200 Gb/s InfiniBand port a GPU: 1D (TP16, TP32), or 3 pipeline stages of 8 "
            f"(PP3/TP8). 16-bit weights, attention over heads; hollow points do not fit in memory. {BOUND}",
            "The original's points have no digits at hand, so these are predictions only. Dotted: the "
            f"highest MFU that the paper's text gives. {most.credit}",
        ),
        panels=(
            Panel(
                title="60 input tokens, 20 output tokens",
                x_label="Total latency (s)",
                y_label="MFU",
                series=tuple(
                    Series(
                        system.label,
                        tuple(r.seconds for r in runs),
                        tuple(r.mfu for r in runs),
                        labels=tuple(str(r.batch) for r in runs),
                        hollow=tuple(not r.fits for r in runs),
                        colour=i,
                    )
                    for i, (system, runs) in enumerate(found.items())
                ),
                lines=tuple(
                    ReferenceLine("y", row["mfu"], f"{names[row['system']]}: {row['mfu']:.0%}", "end")
                    for row in most.rows
                ),
                x_scale="log",
                percent=True,
            ),
        ),
        tables=(
            _highest_mfus({system.key: runs for system, runs in found.items()}),
            ExhibitTable(
                "60 tokens in, 20 out",
                _TOTALS,
                tuple({"system": system.label, **r.row()} for system, runs in found.items() for r in runs),
            ),
        ),
    )


def _highest_mfus(found: dict[str, tuple[BatchRun, ...]]) -> ExhibitTable:
    rows = []
    for row in published("maximum-mfu").rows:
        best = max((r for r in found[row["system"]] if r.fits), key=lambda r: r.mfu)
        over = ratio(row["mfu"], best.mfu)
        rows.append(
            {
                **best.row(),
                "system": row["system"],
                "published_mfu": row["mfu"],
                "published_over_bound": over,
            }
        )
    return ExhibitTable(
        "Highest MFU (published: whatever input and output lengths; bound: 60 in, 20 out)",
        columns(
            *("system", "batch", "bound_mfu", "published_mfu", "published_over_bound"),
            batch="batch of the bound",
            published_mfu="published",
        ),
        tuple(rows),
    )


# -- Tables D -----------------------------------------------------------------------------------------------


def table_d() -> Exhibit:
    """Hyperparameters (D.1), and total times (D.2 to D.4)."""
    sources = tuple(
        published(name).credit for name in ("ours-20-8", "ours-megatron-20-8", "fastertransformer-20-8")
    )
    return Exhibit(
        name="tableD",
        title="Tables D. PaLM 540B and MT-NLG 530B on 64 TPU v4, MT-NLG 530B on A100 with FasterTransformer",
        caption=(
            "Totals are prefill and decode of a whole batch. TPU: 2D weight-stationary, bf16, attention "
            "over heads. FasterTransformer: 1D over 16 or 32 A100-80GB (TP16, TP32), or 3 pipeline stages "
            f"of 8 (PP3/TP8), 16 bits, NVSwitch in a node, one 200 Gb/s InfiniBand port a GPU. {BOUND}",
            *sources,
            f"Hyperparameters: {published('hyperparameters').source}. Of D.3 and D.4 no published digits "
            "are at hand, so they are predictions only.",
        ),
        tables=(
            _hyperparameters(),
            *(_totals(name, *lengths) for name, lengths in LENGTHS.items()),
            _phases(),
        ),
    )


def _hyperparameters() -> ExhibitTable:
    counts = ("parameters", "layers", "d_model", "d_ff", "heads", "head_dim")
    rows = []
    for row in published("hyperparameters").rows:
        model = catalogue_model(row["model"])
        rows.append(
            {
                "model": model.name,
                **{key: getattr(model, key) for key in counts},
                "attention": "multiquery" if model.kv_heads == 1 else "multihead",
                "block": model.block,
                "published_parameters": row["parameters"],
            }
        )
    return ExhibitTable(
        "D.1: hyperparameters",
        columns(
            "model",
            *(Column(key, key, "count") for key in counts[:-1]),
            "head_dim",
            Column("attention", "attention"),
            Column("block", "block"),
            Column("published_parameters", "parameters, from published sizes", "count"),
        ),
        tuple(rows),
    )


def _measured() -> dict[tuple[str, int], float]:
    """(system, batch) -> published total seconds of 20 tokens in and 8 out."""
    found = {}
    for row in published("ours-20-8").rows:
        found["ours-palm", row["batch"]] = (row["prefill_ms"] + row["decode_ms"]) / 1e3
    for row in published("ours-megatron-20-8").rows:
        found["ours", row["batch"]] = row["total_ms"] / 1e3
    for row in published("fastertransformer-20-8").rows:
        for system in ("tp16", "tp32", "pp3_tp8"):
            found[system, row["batch"]] = row[f"{system}_ms"] / 1e3
    return found


def _totals(name: str, prompt: int, output: int) -> ExhibitTable:
    known = _measured() if name == "D.2" else {}
    rows: list[dict[str, Any]] = []
    for system in SYSTEMS:
        for r in batch_runs(system, prompt, output):
            seconds = known.get((system.key, r.batch))
            work = r.mfu * r.seconds  # seconds that the model's FLOPs take at peak
            rows.append(
                {
                    "system": system.label,
                    **r.row(),
                    "published_seconds": seconds,
                    "published_mfu": work / seconds if seconds else None,
                    "published_over_bound": ratio(seconds, r.seconds),
                }
            )
    beside = columns(
        *("published_seconds", "published_mfu", "published_over_bound"),
        published_seconds="published total",
        published_mfu="its MFU, derived",
    )
    title = f"{name}: {prompt} tokens in, {output} out"
    return ExhibitTable(title, (*_TOTALS, *(beside if known else ())), tuple(rows))


def _phases() -> ExhibitTable:
    """PaLM's two phases of D.2 apart."""
    found = {r.batch: r for r in batch_runs(SYSTEMS[0], *LENGTHS["D.2"])}
    rows = []
    for row in published("ours-20-8").rows:
        both = found[row["batch"]]
        for phase, prediction in (("prefill", both.prefill), ("decode", both.decode)):
            seconds = row[f"{phase}_ms"] / 1e3
            rows.append(
                {
                    "batch": row["batch"],
                    "phase": phase,
                    "bound_seconds": prediction.total_seconds,
                    "published_seconds": seconds,
                    "published_over_bound": ratio(seconds, prediction.total_seconds),
                }
            )
    return ExhibitTable(
        "D.2: the phases of PaLM 540B on 64 TPU v4",
        columns("batch", "phase", "bound_seconds", "published_seconds", "published_over_bound"),
        tuple(rows),
    )
