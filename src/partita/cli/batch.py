"""`partita batch`: requests from a file, answers to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli import serving_options as s
from partita.cli.output import progress_bar, show, show_json
from partita.errors import InputError

_QUEUE = 2**31
"""The lines that are read are never too many."""


def command(
    model: o.ModelName,
    requests: Annotated[
        str, typer.Argument(metavar="IN", help="Requests in OpenAI's batch format, a line each.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Answers; what is there is gone on from.")],
    slots: s.Slots = 16,
    context: s.Context = None,
    prefixes: s.Prefixes = None,
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
    json: o.AsJson = False,
) -> None:
    """Answer a file of requests, each line once, however often it is stopped and run again."""
    import asyncio

    from partita.server.batch import AnswerFile, Tally, count_lines, run_batch

    source, target = Path(requests).expanduser(), Path(out).expanduser()
    lines = count_lines(source)
    if target.exists() and target.samefile(source):
        raise InputError("out", out, "is the file of requests; give another")
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
    answers = AnswerFile(target)
    tally = Tally(len(answers.known), answers.errors, lines)
    try:
        if tally.done < lines:
            service = serving.service(model, _QUEUE)
            service.loop.start()
            service.loop.wait()
            with progress_bar(remaining=True) as tell:

                def shown(now: Tally) -> None:
                    tell(f"{now.done:,} of {now.lines:,} lines", now.done, now.lines)

                tally = asyncio.run(run_batch(service, source, answers, shown, lines))
            service.loop.stop()
            service.loop.join()
    finally:
        answers.close()
    if json:
        show_json({"lines": tally.lines, "answered": tally.done, "errors": tally.errors, "out": out})
    else:
        show(f"{tally.done:,} of {tally.lines:,} lines have an answer in {out}, {tally.errors:,} an error")
