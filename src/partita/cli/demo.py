"""`partita demo`: plans PaLM 540B on 64 TPU v4, then runs a real model on this machine's mesh."""

from __future__ import annotations

from typing import Annotated

import typer

from partita.advice.advice import Advice
from partita.cli import options as o
from partita.cli import sampling_options as s
from partita.cli.generate import load_engine
from partita.cli.generated import stream
from partita.cli.output import progress_console, show, show_json
from partita.cli.prompts import prompt_of
from partita.cli.verify import as_json, table
from partita.engine.load import EngineRequest, Placement
from partita.planner.plan import Plan, make_plan
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs.formats import Formats
from partita.specs.sampling import Sampling
from partita.specs.workload import Workload

_WORKLOADS = {
    "chat": ("latency", "int8", Workload(prompt=2048, output=64, batch=64, prefill_batch=1)),
    "offline": ("cost", "bf16", Workload(prompt=2048, output=64, batch=512)),
}
_PREFILL, _DECODE = "wg-xyz/batch", "ws2d/batch"


def command(
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue.")] = "Once upon a time",
    max_tokens: s.MaxTokens = None,
    json: o.AsJson = False,
) -> None:
    """Plan PaLM 540B on 64 TPU v4; run SmolLM2 on 8 CPU devices; compare predicted and counted bytes."""
    plans = {name: _plan(*workload) for name, workload in _WORKLOADS.items()}
    if not json:
        from partita.report.plan import plan

        for name, found in plans.items():
            show(f"\n== {name} ==", plan(Advice(found)))
        show(f"\n== SmolLM2-135M on 8 CPU devices, mesh x=2,y=2,z=2: prefill {_PREFILL}, decode {_DECODE} ==")
    mesh = Mesh("xyz", (2, 2, 2))
    run = Placement(mesh, parse_layout(_PREFILL, mesh.axes), parse_layout(_DECODE, mesh.axes))
    from partita.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint("smollm2-135m")
    ids, shown = prompt_of(checkpoint, prompt, None, None)
    with s.named_as_options():
        sampling = Sampling(max_tokens=max_tokens)
    request = EngineRequest(dtype="f32", words={"max_tokens": "--max-tokens {}"})
    engine = load_engine(checkpoint, run, request, ids, sampling)
    (answer,), seconds = stream(engine, ids, sampling, shown, quiet=json)
    if not json:
        rate = (len(answer.tokens) - 1) / seconds["decode"]
        show(
            f"[{len(answer.tokens)} tokens, {answer.finish_reason}; prefill {seconds['prefill']:.1f} "
            f"s, then {rate:.1f} tokens/s, compilation included]\n",
            "Collective bytes each device sends in one step of these two programs, 8 sequences of 16 tokens:",
        )
    from partita.measure.verify import verify

    with progress_console().status("tracing and compiling"):
        checks = list(
            verify(
                engine.model,
                mesh,
                [(run.prefill, run.decode)],
                engine.formats,
                Workload(prompt=16, output=1, batch=8, context=32),
            )
        )
    exact = all(check.exact for check in checks)
    if json:
        show_json(
            {
                "plans": {name: found.as_json() for name, found in plans.items()},
                "text": shown + answer.text,
                "tokens": answer.tokens,
                "exact": exact,
                "checks": [as_json(check) for check in checks],
            }
        )
    else:
        show(table(checks), "exact" if exact else "NOT exact")
    if not exact:
        raise typer.Exit(1)


def _plan(objective, weights: str, workload: Workload) -> Plan:
    formats = Formats.model_validate({"weights": weights})
    return make_plan(o.read_setting("palm-540b", "tpu-v4:4x4x4", None, workload, formats), objective)
