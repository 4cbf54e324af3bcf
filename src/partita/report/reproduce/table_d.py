"""Tables D: hyperparameters (D.1), and total times beside FasterTransformer (D.2 to D.4)."""

from __future__ import annotations

from typing import Any

from partita.report.reproduce.exhibit import BOUND, Column, Exhibit, Rows, ratio
from partita.report.reproduce.published import published
from partita.report.reproduce.systems import SYSTEMS, requests
from partita.specs import catalogue_model

LENGTHS = {"D.2": (20, 8), "D.3": (60, 20), "D.4": (128, 8)}


def build() -> Exhibit:
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


def _hyperparameters() -> Rows:
    rows = []
    for row in published("hyperparameters").rows:
        model = catalogue_model(row["model"])
        rows.append(
            {
                "model": model.name,
                "parameters": model.parameters,
                "layers": model.layers,
                "d_model": model.d_model,
                "d_ff": model.d_ff,
                "heads": model.heads,
                "head_dim": model.head_dim,
                "attention": "multiquery" if model.kv_heads == 1 else "multihead",
                "block": model.block,
                "published_parameters": row["parameters"],
            }
        )
    counts = ("parameters", "layers", "d_model", "d_ff", "heads", "head_dim")
    return Rows(
        "D.1: hyperparameters",
        (
            Column("model", "model"),
            *(Column(key, key.replace("head_dim", "head dim"), "count") for key in counts),
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


def _totals(name: str, prompt: int, output: int) -> Rows:
    known = _measured() if name == "D.2" else {}
    rows: list[dict[str, Any]] = []
    for system in SYSTEMS:
        for r in requests(system, prompt, output):
            seconds = known.get((system.key, r.batch))
            work = r.mfu * r.seconds  # seconds that the model's FLOPs take at peak
            rows.append(
                {
                    "system": system.label,
                    "batch": r.batch,
                    "bound_seconds": r.seconds,
                    "bound_mfu": r.mfu,
                    "fits": r.fits,
                    "published_seconds": seconds,
                    "published_mfu": work / seconds if seconds else None,
                    "published_over_bound": ratio(seconds, r.seconds),
                }
            )
    published_columns = (
        Column("published_seconds", "published total", "seconds"),
        Column("published_mfu", "its MFU, derived", "share"),
        Column("published_over_bound", "published / bound", "ratio"),
    )
    return Rows(
        f"{name}: {prompt} tokens in, {output} out",
        (
            Column("system", "system"),
            Column("batch", "batch", "count"),
            Column("bound_seconds", "total, bound", "seconds"),
            Column("bound_mfu", "MFU, at most", "share"),
            Column("fits", "fits"),
            *(published_columns if known else ()),
        ),
        tuple(rows),
    )


def _phases() -> Rows:
    """PaLM's two phases of D.2 apart."""
    found = {r.batch: r for r in requests(SYSTEMS[0], *LENGTHS["D.2"])}
    rows = []
    for row in published("ours-20-8").rows:
        request = found[row["batch"]]
        for phase, prediction in (("prefill", request.prefill), ("decode", request.decode)):
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
    return Rows(
        "D.2: the phases of PaLM 540B on 64 TPU v4",
        (
            Column("batch", "batch", "count"),
            Column("phase", "phase"),
            Column("bound_seconds", "bound", "seconds"),
            Column("published_seconds", "published", "seconds"),
            Column("published_over_bound", "published / bound", "ratio"),
        ),
        tuple(rows),
    )
