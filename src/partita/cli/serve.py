"""`partita serve`: a model behind OpenAI's API."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli import serving_options as s
from partita.cli import stopping
from partita.cli.output import show_note
from partita.errors import InputError


def command(
    model: o.ModelName,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 for any that is free.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", help="Key that requests must bring; may be repeated. Also PARTITA_API_KEY."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the model in the API; by default MODEL's.")
    ] = None,
    slots: s.Slots = 8,
    context: s.Context = None,
    max_queue: Annotated[int, typer.Option("--max-queue", help="Requests that may wait for a slot.")] = 256,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Seconds after which a request is ended.")
    ] = None,
    prefixes: s.Prefixes = None,
    max_body: Annotated[int, typer.Option("--max-body", help="Bytes of a request's body.")] = 2**24,
    plan: o.PlanFile = None,
    mesh: o.MeshText = None,
    devices: o.Devices = None,
    ffn: o.RunFfn = None,
    attention: o.RunAttention = None,
    prefill_ffn: o.PrefillFfn = None,
    prefill_attention: o.PrefillAttention = None,
    dtype: o.RunDtype = "auto",
    weights: o.RunWeights = None,
    kv: o.RunKv = None,
    chunk: o.RunChunk = None,
    overlap: o.Overlap = "none",
    force: o.Force = False,
) -> None:
    """Serve a model over OpenAI's API until SIGTERM or Ctrl-C."""
    s.at_least("max-queue", max_queue, 1)
    s.at_least("max-body", max_body, 1)
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise InputError("max-seconds", max_seconds, "a number above 0 is accepted")
    if not 0 <= port < 2**16:
        raise InputError("port", port, "a whole number from 0 to 65535 is accepted")
    keys = tuple(api_key or ()) or tuple(filter(None, (os.environ.get("PARTITA_API_KEY"),)))
    if any(not key for key in keys):
        raise InputError("api-key", "", "a key of at least one character is accepted")
    serving = s.Serving(
        slots=slots,
        context=context,
        prefixes=prefixes,
        plan=plan,
        mesh=mesh,
        devices=devices,
        ffn=ffn,
        attention=attention,
        prefill_ffn=prefill_ffn,
        prefill_attention=prefill_attention,
        dtype=dtype,
        weights=weights,
        kv=kv,
        chunk=chunk,
        overlap=overlap,
        force=force,
    )
    from partita.server.run import serve

    service = serving.service(model, max_queue, max_seconds, name)
    stopping.release()
    serve(service, host, port, keys, max_body, lambda address: show_note(f"ready at {address}"))
