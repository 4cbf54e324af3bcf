"""`partita quantize`: writes a model with its matrices in int8."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.output import progress_bar, show, show_json, show_note
from partita.errors import InputError


def command(
    model: o.ModelName,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write.")],
    dtype: Annotated[
        str, typer.Option("--dtype", help="Format of norms, biases and positions: bf16 or f32.")
    ] = "bf16",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """Write a model's weights in int8, as a folder that every command takes for MODEL."""
    if dtype not in ("bf16", "f32"):
        raise InputError("dtype", dtype, "accepted are bf16, f32")
    from partita.checkpoints.int8_folder import check_out, most_bytes, write_int8

    place = Path(os.path.expanduser(out))
    check_out(place)
    from partita.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(model)
    if (error := checkpoint.tokenizer_error) is not None:
        show_note(f"the tokenizer is not understood, so none is written ({error})")
    if not force:
        from partita.engine.free_memory import check_host

        check_host(f"quantising {checkpoint.model.name}", most_bytes(checkpoint))
    start = time.perf_counter()
    with progress_bar() as tell:
        size = write_int8(checkpoint, place, dtype, lambda done, of: tell("quantising", done, of))
    seconds = time.perf_counter() - start
    if json:
        parameters = checkpoint.model.parameters
        show_json({"out": str(place), "parameters": parameters, "bytes": size, "seconds": seconds})
    else:
        what = f"{checkpoint.model.name} in int8, {size / 1e6:.1f} MB, in {seconds:.1f} s"
        show(f"{place}: {what}; a MODEL for Partita")
