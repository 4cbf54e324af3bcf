"""`partita generate`: runs a model split over a mesh and streams its text."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options as o
from partita.cli import sampling_options as s
from partita.cli.answers import stream
from partita.cli.output import progress_bar, show_json, show_note
from partita.errors import InputError
from partita.program.options import RunOptions, overlap_of

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
    return o.Running(saved.setting.mesh, saved.prefill, saved.decode, saved.setting)


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
    run_options: RunOptions | None = None,
) -> Engine:
    """Places the weights on the mesh, once the request is one that the model can take.

    Shows progress on standard error where that is a terminal.
    """
    from partita.engine.load import placed
    from partita.engine.number_formats import number_formats
    from partita.engine.requests import check_prompts

    number_formats(dtype, weights, kv, "")  # what is wrong is said before there are devices
    check_prompts(checkpoint.model, [ids], max_tokens)
    with progress_bar() as tell:
        return placed(
            checkpoint,
            run.mesh,
            run.prefill,
            run.decode,
            planned=run.planned.formats if run.planned else None,
            dtype=dtype,
            weights=weights,
            kv=kv,
            chunk=run.planned.workload.chunk if chunk is None and run.planned else chunk,
            devices=devices,
            run_options=run_options,
            progress=lambda done, of: tell("placing weights", done, of),
        )


def prompt_of(
    checkpoint: Checkpoint, prompt: str | None, prompt_ids: str | None, chat: bool
) -> tuple[list[int], str]:
    """The prompt's tokens, and the text that is shown before the answer (none for a chat)."""
    if (prompt is None) == (prompt_ids is None):
        raise InputError("prompt", None, "give --prompt TEXT or --prompt-ids 1,2,3, one of the two")
    if prompt_ids is not None and chat:
        raise InputError("chat", None, "is for --prompt TEXT; token ids are taken as they are")
    if prompt_ids is not None:
        return s.token_ids("prompt-ids", prompt_ids), ""
    if checkpoint.tokenizer is None:
        raise InputError("prompt", prompt, "this file has no tokenizer; give --prompt-ids 1,2,3")
    assert prompt is not None
    if chat:
        text = checkpoint.tokenizer.chat([{"role": "user", "content": prompt}])
        return checkpoint.tokenizer.encode(text), ""
    return checkpoint.tokenizer.encode(prompt), prompt


def command(
    model: o.ModelName,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to go on from.")] = None,
    prompt_ids: Annotated[str | None, typer.Option("--prompt-ids", help="Token ids: 1,2,3.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt in the chat template.")] = False,
    max_tokens: s.MaxTokens = 64,
    temperature: s.Temperature = 0.0,
    top_k: s.TopK = 0,
    top_p: s.TopP = 1.0,
    min_p: s.MinP = 0.0,
    repetition_penalty: s.RepetitionPenalty = 1.0,
    presence_penalty: s.PresencePenalty = 0.0,
    frequency_penalty: s.FrequencyPenalty = 0.0,
    logit_bias: s.LogitBias = None,
    stop: s.Stop = None,
    stop_token_ids: s.StopTokenIds = None,
    ignore_eos: s.IgnoreEos = False,
    logprobs: s.Logprobs = None,
    n: s.Samples = 1,
    seed: s.Seed = None,
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
    weights: Annotated[
        str | None, typer.Option("--weights", help="int8; else as the plan or the checkpoint has them.")
    ] = None,
    kv: Annotated[
        str | None, typer.Option("--kv", help="int8 for the cache; else as the plan has it.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", help="Tokens of the prompt read in one step, at most.")
    ] = None,
    overlap: Annotated[str, typer.Option("--overlap", help=o.OVERLAP_HELP)] = "none",
    json: o.AsJson = False,
) -> None:
    """Generate text with a model split over this machine's devices."""
    sampling = s.read_sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        n=n,
        seed=seed,
    )
    run_options = RunOptions(overlap_of(overlap))
    if sampling.greedy and (given := s.drawn_only(sampling)):
        show_note(f"at temperature 0 the likeliest token is always taken: {', '.join(given)} change nothing")
    if sampling.seed is None:  # said in what is printed, so that it can be had again
        sampling = sampling.model_copy(update={"seed": secrets.randbits(63)})
    run = running(plan, mesh, devices, ffn, attention, prefill_ffn, prefill_attention)
    from partita.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(model)
    ids, shown = prompt_of(checkpoint, prompt, prompt_ids, chat)
    s.check_tokens(sampling, checkpoint.model.vocabulary)
    if run.planned is not None and run.planned.model.name != checkpoint.model.name:
        planned = run.planned.model.name
        show_note(f"the plan was made for {planned}; its mesh and layouts run {checkpoint.model.name}")
    engine = load_engine(
        checkpoint,
        run,
        devices,
        ids,
        max_tokens,
        dtype=dtype,
        weights=weights,
        kv=kv,
        chunk=chunk,
        run_options=run_options,
    )
    answers, seconds = stream(engine, ids, sampling, shown, quiet=json)
    if json:
        samples = [answer.as_json(shown, sampling) for answer in answers]
        show_json(
            {
                **samples[0],
                "prompt_tokens": len(ids),
                "samples": samples,
                "model": checkpoint.model.name,
                "mesh": str(run.mesh),
                "layouts": {"prefill": str(run.prefill), "decode": str(run.decode)},
                "formats": engine.formats.model_dump(),
                "seed": sampling.seed,
                "seconds": {**seconds, "note": "each phase's first step compiles"},
            }
        )
