"""`partita models` and `partita clusters`: what the catalogue holds, with sources; or one model as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.api import read_model
from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.errors import InputError
from partita.specs import (
    Model,
    catalogue_chip,
    catalogue_model,
    cluster_families,
    format_bytes,
    format_count,
    model_aliases,
    model_names,
    sources,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from partita.checkpoints.tokenizer import Tokenizer

_SIZES = ("parameters", "layers", "d_model", "d_ff", "heads", "KV heads", "head dim", "vocabulary")


def models(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help=f"One to look at. {o.MODEL_HELP}")
    ] = None,
    json: o.AsJson = False,
) -> None:
    """List the models of the catalogue, or show one: its sizes, its tokenizer and what ends its texts."""
    if model is not None:
        _one_model(model, json)
        return
    aliases: dict[str, list[str]] = {}
    for alias, name in model_aliases().items():
        aliases.setdefault(name, []).append(alias)
    found = [catalogue_model(name) for name in model_names()]
    if json:
        listed = [
            {
                **_as_json(model),
                "aliases": aliases.get(model.name, []),
                "sources": sources("models", model.name),
            }
            for model in found
        ]
        show_json(listed)
        return
    show(
        _sizes(found),
        "runs: whether the engine runs it; the others can only be planned. Reasons and sources: --json",
    )


def _sizes(found: list[Model]) -> RenderableType:
    from partita.report.tables import plain_table

    table = plain_table("model", *_SIZES, "runs", right=_SIZES)
    for m in found:
        sizes = (m.parameters, m.layers, m.d_model, m.d_ff, m.heads, m.kv_heads, m.head_dim, m.vocabulary)
        table.add_row(m.name, *(f"{size:,}" for size in sizes), "no" if m.beyond_engine else "yes")
    return table


def _as_json(model: Model) -> dict[str, Any]:
    return {
        **model.model_dump(),
        "parameters": model.parameters,
        "kv_elements_per_token": model.kv_elements_per_token,
        "local_layers": model.local_layers,
        "beyond_engine": model.beyond_engine,
    }


def _one_model(text: str, json: bool) -> None:
    from partita.checkpoints.open import open_tokenizer

    model, problem = read_model(text), None
    try:
        tokenizer, ends = open_tokenizer(text, model.vocabulary)
    except InputError as error:  # such as weights that are not installed; the model can still be planned
        tokenizer, ends = error, {}
    if isinstance(tokenizer, InputError):
        tokenizer, problem = None, str(tokenizer)
    texts = {i: _token_text(tokenizer, i) for i in ends}
    if json:
        about = None if problem is None else {"problem": problem}
        if tokenizer is not None:
            bos = tokenizer.bos_id
            about = {
                "tokens": len(tokenizer.tokens),
                "bos": None if bos is None else {"token": bos, "text": _token_text(tokenizer, bos)},
                "adds_bos": tokenizer.add_bos,
                "chat_template": tokenizer.chat_template is not None,
                "chat_template_problem": _template_problem(tokenizer),
                "problem": None,
            }
        listed = [{"token": i, "text": texts[i], "reasons": list(why)} for i, why in ends.items()]
        show_json({**_as_json(model), "tokenizer": about, "ends": listed})
        return
    from rich.text import Text

    from partita.report.tables import plain_table

    table = plain_table("ends a text", "id", "why", right=("id",))
    for i, why in ends.items():
        # a text of its own: what stands in brackets is no markup
        table.add_row(Text(texts[i] or "?"), str(i), Text("; ".join(why)))
    about = _about(tokenizer) if tokenizer is not None else [f"tokenizer: {problem or 'none'}"]
    show(_sizes([model]), *map(Text, about), table if ends else "ends a text: no token that is known")


def _about(tokenizer: Tokenizer) -> list[str]:
    """A tokenizer in words."""
    bos = tokenizer.bos_id
    begins = "put" if tokenizer.add_bos else "not put"
    named = "none" if bos is None else f"{_token_text(tokenizer, bos)} ({bos}), {begins} before a prompt"
    template = "none" if tokenizer.chat_template is None else "yes"
    if problem := _template_problem(tokenizer):
        template = f"cannot be used ({problem})"
    return [f"tokenizer: {len(tokenizer.tokens):,} tokens; bos {named}", f"chat template: {template}"]


def _token_text(tokenizer: Tokenizer | None, token: int) -> str | None:
    """A token as its vocabulary spells it; None for an id that it does not have."""
    if tokenizer is None or token >= len(tokenizer.tokens):
        return None
    return tokenizer.tokens[token]


def _template_problem(tokenizer: Tokenizer) -> str | None:
    """Why a plain question cannot be put in the chat template; None where it can, and where there is none."""
    if tokenizer.chat_template is None:
        return None
    try:
        tokenizer.chat([{"role": "user", "content": "Hi"}])
    except InputError as error:
        return str(error)
    return None


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
