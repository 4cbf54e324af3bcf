"""What the engine's benchmark prints: conditions, roofs, tokens a second with shares of the roofs, ratios."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from partita.specs import Model, catalogue_model
from partita.specs.parameters import all_parameters

BASELINE = "transformers f32"


def show(result: dict[str, Any]) -> None:
    """Prints the result on standard output."""
    console = Console(width=140)
    for name, value in result["conditions"].items():
        if value is not None:
            said = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            console.print(f"{name.replace('_', ' ')}: {said}", highlight=False, soft_wrap=True)
    roofs, engines = result["roofs"], result["engines"]
    console.print(
        f"measured: memory read at {roofs['memory'] / 1e9:.1f} GB/s, "
        f"float32 matmul at {roofs['matmul'] / 1e9:.0f} GFLOP/s",
        highlight=False,
    )
    cases = list(dict.fromkeys(case for each in engines.values() for case in each.get("cases", {})))
    what = "Tokens a second (prefill: share of matmul, decode: share of memory)"
    rates, ratios = Table("engine", *cases, title=what), Table("engine", *cases, title=f"Times {BASELINE}")
    base = engines.get(BASELINE, {}).get("cases", {})
    for name, engine in engines.items():
        found = [engine.get("cases", {}).get(case, {}) for case in cases]
        cells = [_rate(each, share(result, engine, case)) for case, each in zip(cases, found, strict=True)]
        rates.add_row(name, *cells)
        ratios.add_row(name, *(_ratio(each, base.get(c, {})) for c, each in zip(cases, found, strict=True)))
    console.print(rates)
    if any("step_seconds" in each for each in base.values()):
        console.print(ratios)
    for name, engine in engines.items():
        for case, each in ("", engine), *engine.get("cases", {}).items():
            if "failed" in each:
                console.print(f"{name} {case}: {each['failed']}", highlight=False, soft_wrap=True)


def share(result: dict[str, Any], engine: dict[str, Any], case: str) -> float | None:
    """The share of the measured matmul rate that a prefill reached, or of the memory's that a decode did.

    A prefill's operations are those of the matmuls that its answer needs. A decode step reads every weight
    once, and the keys and values of each sequence's prompt.
    """
    found = engine.get("cases", {}).get(case, {})
    if "step_seconds" not in found:
        return None
    model, prompt = catalogue_model(result["model"]), result["prompt"]
    if case.startswith("prefill"):
        return prefill_flops(model, prompt) / found["step_seconds"] / result["roofs"]["matmul"]
    batch = found["tokens_per_second"] * found["step_seconds"]
    cached = batch * prompt * model.kv_elements_per_token * engine["cache_bytes"]
    return (engine["weight_bytes"] + cached) / found["step_seconds"] / result["roofs"]["memory"]


def prefill_flops(model: Model, tokens: int) -> float:
    """FLOPs of a prompt's matmuls: each token through every layer, to those before it; one unembedded."""
    rows = all_parameters(model).items()
    matrices = sum(row.count for name, row in rows if "layers." in name and "norm" not in name)
    attended = tokens * (tokens + 1) / 2
    scores = 2 * model.layers * model.heads * model.head_dim * attended  # queries by keys, shares by values
    return 2 * (tokens * matrices + scores + model.vocabulary * model.d_model)


def _rate(found: dict[str, Any], share: float | None) -> str:
    if "step_seconds" not in found:
        return "not measured"
    return f"{found['tokens_per_second']:,.1f}" + ("" if share is None else f" ({share:.0%})")


def _ratio(found: dict[str, Any], base: dict[str, Any]) -> str:
    if "step_seconds" not in found or "step_seconds" not in base:
        return ""
    return f"{base['step_seconds'] / found['step_seconds']:.2f}"
