"""`partita serve`: a model behind OpenAI's API."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli import stopping
from partita.cli.output import progress_bar, show_note
from partita.errors import InputError
from partita.program.options import RunOptions, overlap_of


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
    slots: Annotated[int, typer.Option("--slots", help="Sequences that are decoded together.")] = 8,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", help="Tokens of a request, prompt and output. Default: 2048 or the model's."
        ),
    ] = None,
    max_queue: Annotated[int, typer.Option("--max-queue", help="Requests that may wait for a slot.")] = 256,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Seconds after which a request is ended.")
    ] = None,
    prefixes: Annotated[
        int | None,
        typer.Option(
            "--prefixes", help="Prompts kept for those that begin alike. Default: as many as slots."
        ),
    ] = None,
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
    for field, value, least in (("max-queue", max_queue, 1), ("max-body", max_body, 1), ("slots", slots, 1)):
        if value < least:
            raise InputError(field, value, f"a whole number of at least {least} is accepted")
    if prefixes is not None and prefixes < 0:
        raise InputError("prefixes", prefixes, "a whole number of at least 0 is accepted")
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise InputError("max-seconds", max_seconds, "a number above 0 is accepted")
    if not 0 <= port < 2**16:
        raise InputError("port", port, "a whole number from 0 to 65535 is accepted")
    keys = tuple(api_key or ()) or tuple(filter(None, (os.environ.get("PARTITA_API_KEY"),)))
    if any(not key for key in keys):
        raise InputError("api-key", "", "a key of at least one character is accepted")
    run_options = RunOptions(overlap_of(overlap))
    run = o.read_placement(plan, mesh, devices, ffn, attention, prefill_ffn, prefill_attention)
    from partita.checkpoints.open import open_checkpoint
    from partita.engine.engine import Engine
    from partita.engine.load import EngineRequest
    from partita.engine.shapes import Capacity
    from partita.server.loop import EngineLoop, Limits
    from partita.server.run import serve
    from partita.server.service import Service

    checkpoint = open_checkpoint(model)
    longest = checkpoint.model.max_context
    if context is not None and not 2 <= context <= (longest or context):
        raise InputError(
            "context", context, f"2 to {longest} tokens are accepted" if longest else "at least 2"
        )
    if (error := checkpoint.tokenizer_error) is not None:
        show_note(f"the tokenizer is not understood, so prompts and answers are token ids ({error})")
    request = EngineRequest(
        dtype=dtype,
        weights=weights,
        kv=kv,
        chunk=chunk,
        run_options=run_options,
        devices=devices,
        capacity=Capacity(slots, context or min(2048, longest or 2048)),
        draft="off",
        force=force,
    )
    with progress_bar() as show:
        engine = Engine.on(checkpoint, run, request, lambda done, of: show("placing weights", done, of))
    loop = EngineLoop(engine, Limits(max_queue, max_seconds, prefixes))
    planned = None if run.plan is None else {"plan": _figures(run.plan)}
    service = Service(loop, name or checkpoint.model.name, checkpoint.sampling, planned)
    size = f"{loop.capacity.slots} slots of {loop.context} tokens on {run.mesh}"
    show_note(f"{service.name}: {size}; compiling the steps")
    stopping.release()
    serve(service, host, port, keys, max_body, lambda address: show_note(f"ready at {address}"))


def _figures(plan) -> dict:
    """What a saved plan predicts of each phase, in seconds: bound, and estimate where there is one."""
    prefill, decode = plan.predictions()
    return {name: phase.as_json() for name, phase in (("prefill", prefill), ("decode", decode))}
