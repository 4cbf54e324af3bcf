"""`partita quality`: what bf16 and int8 cost a model, on a text, beside float32."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options as o
from partita.cli.output import progress_bar, show, show_json
from partita.errors import InputError
from partita.sharding.roles import parse_roles

if TYPE_CHECKING:
    from partita.measure.quality import Difference
    from partita.specs.formats import Formats


def command(
    model: o.ModelName,
    text: Annotated[
        str | None, typer.Option("--text", help="A text file. Default: one that is shipped.")
    ] = None,
    formats: Annotated[
        str,
        typer.Option(
            "--formats", help="Formats joined by commas: bf16, int8 (weights), int8+kv (cache too)."
        ),
    ] = "bf16,int8,int8+kv",
    activations: Annotated[
        str, typer.Option("--activations", help="f32 or bf16: format of what int8 leaves in floating point.")
    ] = "f32",
    tokens: Annotated[
        int, typer.Option("--tokens", help="Most tokens to use, from the start of the text.")
    ] = 2048,
    window: Annotated[
        int | None,
        typer.Option("--window", help="Tokens in one window. Default: 512, or the model's most if fewer."),
    ] = None,
    mesh: o.MeshText = None,
    devices: o.Devices = None,
    ffn: o.Ffn = "ws2d",
    attention: o.Attention = "heads",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """Measure what number formats cost a model: logit error, agreement and perplexity on a text."""
    if activations not in ("f32", "bf16"):
        raise InputError("activations", activations, "accepted are f32, bf16")
    shape = o.read_mesh(mesh, devices)
    roles = parse_roles(ffn, attention, shape.axes)
    read = None if text is None else _read(text)
    from partita.checkpoints.open import open_checkpoint
    from partita.engine.devices import devices_for

    checkpoint = open_checkpoint(model)
    if checkpoint.tokenizer is None:
        raise InputError("model", model, "has no tokenizer, so it cannot read a text")
    chosen = devices_for(shape.chips, devices)
    from partita.engine.engine import EngineOptions
    from partita.engine.requests import check_prompts
    from partita.measure.quality import formats_named, measure, shipped_text, windows_of

    names = list(dict.fromkeys(name.strip() for name in formats.split(",")))
    names = [name for name in names if name != "f32"]  # which is measured anyway
    kinds = [formats_named(name, activations) for name in names]
    words = shipped_text() if read is None else read
    parts = windows_of(words, checkpoint.tokenizer, checkpoint.model.max_context, tokens, window)
    check_prompts(checkpoint.model, parts)
    options = EngineOptions(chosen, force=force, words={**o.FORCED, "tokens": "--tokens {}"})
    with progress_bar() as tell:
        found = list(measure(checkpoint, parts, kinds, shape, roles, options, tell))
    rows = list(zip(["f32", *names], [formats_named("f32"), *kinds], found, strict=True))
    if json:
        conditions = {
            "model": checkpoint.model.name,
            "text": text or "shipped",
            "tokens": found[0].tokens,
            "windows": len(parts),
            "window": len(parts[0]),
            "mesh": dict(shape.size),
            "layout": str(roles),
            "device": chosen[0].platform,
        }
        show_json({**conditions, "formats": [_as_json(*row) for row in rows]})
        return
    show(
        f"{checkpoint.model.name}: {found[0].tokens} tokens of {text or 'the shipped text'} predicted, in "
        f"windows of {len(parts[0])}; {roles} on {shape} of {chosen[0].platform}",
        _table(rows),
        "changes, errors, agreement and KL divergence (nats a token) are against f32; ± is a standard error",
    )


def _read(path: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError("text", path, f"cannot be read: {error.strerror}") from None
    except ValueError:  # not UTF-8, or no path at all
        raise InputError("text", path, "is not UTF-8 text") from None


def _as_json(name: str, formats: Formats, found: Difference) -> dict:
    return {
        "name": name,
        "weights": formats.weights,
        "activations": formats.activations,
        "kv": formats.kv,
        "perplexity": found.perplexity,
        "perplexity_change": found.perplexity_change,
        "perplexity_change_standard_error": found.perplexity_change_error,
        "agreement": found.agreement,
        "logit_rms_error": found.rms_error,
        "logit_largest_error": found.largest_error,
        "kl_divergence": found.mean_divergence,
    }


def _table(rows: list[tuple[str, Formats, Difference]]):
    from partita.report.tables import plain_table

    right = ("perplexity", "change", "same top token", "RMS logit error", "largest", "KL divergence")
    table = plain_table("", "weights", "activations", "cache", *right, right=right)
    for name, formats, found in rows:
        table.add_row(
            *(name, formats.weights, formats.activations, formats.kv),
            f"{found.perplexity:.4f}",
            f"{found.perplexity_change:+.2%} ± {found.perplexity_change_error:.2%}",
            *(f"{found.agreement:.1%}", f"{found.rms_error:.4g}", f"{found.largest_error:.4g}"),
            f"{found.mean_divergence:.3g}",
        )
    return table
