"""`partita generate`: runs a model split over a mesh and streams its text."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options as o
from partita.cli.output import progress_bar, show_json
from partita.errors import InputError
from partita.specs.sampling import Sampling

if TYPE_CHECKING:
    from partita.checkpoints.protocol import Checkpoint
    from partita.engine.engine import Engine

Devices = Annotated[
    int | None, typer.Option("--devices", help="Make this many CPU devices where there is no accelerator.")
]
PrefillFfn = Annotated[str | None, typer.Option("--prefill-ffn", help="Where prefill differs.")]
PrefillAttention = Annotated[str | None, typer.Option("--prefill-attention", help="Where prefill differs.")]
PlanFile = Annotated[str | None, typer.Option("--plan", help="A plan.json: its mesh and layouts are run.")]


def running(
    plan: str | None,
    mesh: str | None,
    devices: int | None,
    ffn: str | None,
    attention: str | None,
    prefill_ffn: str | None,
    prefill_attention: str | None,
) -> o.Running:
    """The mesh and layouts of a plan file, or those the flags give."""
    if plan is None:
        return o.read_running(
            mesh, devices, ffn or "ws2d", attention or "batch", prefill_ffn, prefill_attention
        )
    from partita.planner.saved import load_plan

    saved = load_plan(plan)
    from partita.engine.requests import check_stages

    check_stages(saved.setting.stages)
    given = {
        "mesh": mesh,
        "ffn": ffn,
        "attention": attention,
        "prefill-ffn": prefill_ffn,
        "prefill-attention": prefill_attention,
    }
    for field, value in given.items():
        if value is not None:
            raise InputError(field, value, "give it or --plan, which has a mesh and layouts of its own")
    return o.Running(saved.setting.mesh, saved.prefill, saved.decode, saved.setting.formats)


def load_engine(
    checkpoint: Checkpoint,
    run: o.Running,
    devices: int | None,
    ids: list[int],
    max_tokens: int,
    *,
    dtype: str = "auto",
    weights: str | None = None,
    kv: str | None = None,
    chunk: int | None = None,
) -> Engine:
    """Places the weights on the mesh, once the request is one that the model can take.

    Shows progress on standard error where that is a terminal.
    """
    from partita.engine.devices import devices_for
    from partita.engine.number_formats import number_formats
    from partita.engine.requests import check_prompts

    number_formats(dtype, weights, kv, "")  # what is wrong is said before there are devices
    check_prompts(checkpoint.model, [ids], max_tokens)

    chosen = devices_for(run.mesh.chips, devices)
    from partita.engine.engine import Engine

    formats = number_formats(dtype, weights, kv, chosen[0].platform, run.planned)
    with progress_bar() as tell:
        return Engine(
            checkpoint,
            run.mesh,
            run.prefill,
            run.decode,
            formats=formats,
            devices=chosen,
            chunk=chunk,
            progress=lambda done, of: tell("placing weights", done, of),
        )


def prompt_of(
    checkpoint: Checkpoint, prompt: str | None, prompt_ids: str | None, chat: bool
) -> tuple[list[int], str]:
    """The prompt's tokens, and the text that is shown before the answer (none for a chat)."""
    if (prompt is None) == (prompt_ids is None):
        raise InputError("prompt", None, "give --prompt TEXT or --prompt-ids 1,2,3, one of the two")
    if prompt_ids is not None:
        parts = [part.strip() for part in prompt_ids.split(",")]
        if not all(part.isdecimal() for part in parts):
            raise InputError(
                "prompt-ids", prompt_ids, "token ids joined by commas are accepted, such as 1,2,3"
            )
        return [int(part) for part in parts], ""
    if checkpoint.tokenizer is None:
        raise InputError("prompt", prompt, "this file has no tokenizer; give --prompt-ids 1,2,3")
    assert prompt is not None
    if chat:
        text = checkpoint.tokenizer.chat([{"role": "user", "content": prompt}])
        return checkpoint.tokenizer.encode(text), ""
    return checkpoint.tokenizer.encode(prompt), prompt


@dataclass(frozen=True)
class Answer:
    """What was generated, why it ended ("length" or "stop"), and the seconds of each phase."""

    text: str
    tokens: list[int]
    finish_reason: str
    seconds: dict[str, float]


def stream(engine: Engine, ids: list[int], max_tokens: int, shown: str, quiet: bool) -> Answer:
    """Generates greedily; writes `shown` and then the text as it comes to standard output, unless `quiet`."""

    def write(text: str) -> None:
        if not quiet:
            sys.stdout.write(text)
            sys.stdout.flush()

    write(shown)
    texts, tokens, reason, start, first = [], [], "", time.perf_counter(), 0.0
    for piece in engine.pieces(ids, Sampling(max_tokens=max_tokens)):
        first = first or time.perf_counter() - start
        tokens += [] if piece.token is None else [piece.token]
        reason = piece.finish or reason
        texts.append(piece.text)
        write(piece.text)
    write("\n")
    seconds = {"prefill": first, "decode": time.perf_counter() - start - first}
    return Answer("".join(texts), tokens, reason, seconds)


def command(
    model: o.ModelName,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to go on from.")] = None,
    prompt_ids: Annotated[str | None, typer.Option("--prompt-ids", help="Token ids: 1,2,3.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt in the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="Only 0, greedy, so far.")] = 0.0,
    plan: PlanFile = None,
    mesh: o.MeshText = None,
    devices: Devices = None,
    ffn: Annotated[str | None, typer.Option("--ffn", help=f"{o.FFN_HELP} ws2d unless given.")] = None,
    attention: Annotated[
        str | None, typer.Option("--attention", help=f"{o.ATTENTION_HELP} batch unless given.")
    ] = None,
    prefill_ffn: PrefillFfn = None,
    prefill_attention: PrefillAttention = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="f32, bf16, or auto: what the devices are fast in.")
    ] = "auto",
    weights: Annotated[str | None, typer.Option("--weights", help="int8; else in dtype.")] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="The cache in int8; else in dtype.")] = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", help="Tokens of the prompt read in one step, at most.")
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Generate text with a model split over this machine's devices."""
    if temperature != 0:
        raise InputError("temperature", temperature, "only 0 (greedy) is accepted so far")
    if max_tokens < 1:
        raise InputError("max-tokens", max_tokens, "1 or more tokens are accepted")
    run = running(plan, mesh, devices, ffn, attention, prefill_ffn, prefill_attention)
    from partita.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(model)
    ids, shown = prompt_of(checkpoint, prompt, prompt_ids, chat)
    engine = load_engine(
        checkpoint, run, devices, ids, max_tokens, dtype=dtype, weights=weights, kv=kv, chunk=chunk
    )
    answer = stream(engine, ids, max_tokens, shown, quiet=json)
    if json:
        show_json(
            {
                "text": shown + answer.text,
                "completion": answer.text,
                "tokens": answer.tokens,
                "finish_reason": answer.finish_reason,
                "prompt_tokens": len(ids),
                "completion_tokens": len(answer.tokens),
                "seconds": {**answer.seconds, "note": "each phase's first step compiles"},
            }
        )
