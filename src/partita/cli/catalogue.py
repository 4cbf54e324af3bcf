"""`partita models` and `partita clusters`: what the catalogue holds, with sources."""

from __future__ import annotations

from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.specs import (
    catalogue_chip,
    catalogue_model,
    cluster_families,
    format_bytes,
    format_count,
    model_aliases,
    model_names,
    sources,
)


def models(json: o.AsJson = False) -> None:
    """List the models of the catalogue."""
    aliases: dict[str, list[str]] = {}
    for alias, name in model_aliases().items():
        aliases.setdefault(name, []).append(alias)
    found = [catalogue_model(name) for name in model_names()]
    if json:
        show_json(
            [
                {
                    **model.model_dump(),
                    "parameters": model.parameters,
                    "kv_elements_per_token": model.kv_elements_per_token,
                    "local_layers": model.local_layers,
                    "beyond_engine": model.beyond_engine,
                    "aliases": aliases.get(model.name, []),
                    "sources": sources("models", model.name),
                }
                for model in found
            ]
        )
        return
    from partita.report.tables import plain_table

    numbers = ("parameters", "layers", "d_model", "d_ff", "heads", "KV heads", "head dim", "vocabulary")
    table = plain_table("model", *numbers, "runs", right=numbers)
    for m in found:
        sizes = (m.parameters, m.layers, m.d_model, m.d_ff, m.heads, m.kv_heads, m.head_dim, m.vocabulary)
        table.add_row(m.name, *(f"{size:,}" for size in sizes), "no" if m.beyond_engine else "yes")
    show(
        table,
        "runs: whether the engine runs it; the others can only be planned. Reasons and sources: --json",
    )


def clusters(json: o.AsJson = False) -> None:
    """List the kinds of clusters of the catalogue."""
    families = cluster_families()
    if json:
        show_json(
            [
                {
                    "name": family.name,
                    "form": family.pattern,
                    "example": family.example_name,
                    "aliases": list(family.aliases),
                    "chip": catalogue_chip(family.chip).model_dump(),
                    "fabric": [axis.model_dump() for axis in family.fabric],
                    "sources": {
                        **sources("clusters", family.name),
                        "chip": sources("chips", family.chip),
                    },
                }
                for family in families
            ]
        )
        return
    from partita.report.tables import plain_table

    table = plain_table("cluster", "chip", "peak FLOP/s", "memory", "memory bandwidth", "fabric")
    for family in families:
        chip = catalogue_chip(family.chip)
        peaks = ", ".join(f"{name} {format_count(peak)}" for name, peak in chip.peak_flops.items())
        fabric = ", ".join(
            f"{axis.kind} ({axis.links} x {format_bytes(axis.link_bandwidth)}/s)" for axis in family.fabric
        )
        table.add_row(
            f"{family.pattern} (such as {family.example_name})",
            chip.name,
            peaks,
            format_bytes(chip.hbm_bytes),
            f"{format_bytes(chip.hbm_bandwidth)}/s",
            fabric,
        )
    show(table, "or a TOML file of your own; sources: partita clusters --json")
