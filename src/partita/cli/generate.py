"""`partita generate`: runs a model split over a mesh and streams its text."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options as o
from partita.cli import prompts as p
from partita.cli import sampling_options as s
from partita.cli.generated import stream
from partita.cli.output import progress_bar, show_json, show_note
from partita.engine.drafting import check_draft
from partita.engine.load import EngineRequest, Placement
from partita.program.options import RunOptions, overlap_of
from partita.specs.sampling import Sampling

if TYPE_CHECKING:
    from partita.checkpoints.protocol import Checkpoint
    from partita.engine.engine import Engine


def load_engine(
    checkpoint: Checkpoint, placement: Placement, request: EngineRequest, ids: list[int], sampling: Sampling
) -> Engine:
    """Places the weights on the mesh, once the prompt is one that the model and the memory can take.

    Shows progress on standard error where that is a terminal.
    """
    from partita.engine.engine import Engine
    from partita.engine.memory import Asked
    from partita.engine.requests import check_prompts, fitted

    sampling = fitted(checkpoint.model, len(ids), sampling)
    check_prompts(checkpoint.model, [ids], sampling.max_tokens)
    first = Asked((len(ids),), (sampling,))
    with progress_bar() as tell:
        return Engine.on(
            checkpoint, placement, request, lambda done, of: tell("placing weights", done, of), first
        )


def command(
    model: o.ModelName,
    prompt: p.Prompt = None,
    prompt_ids: p.PromptIds = None,
    chat: p.AsChat = False,
    system: p.System = None,
    messages: p.Messages = None,
    chat_template_kwargs: p.TemplateKwargs = None,
    max_tokens: s.MaxTokens = None,
    temperature: s.Temperature = None,
    top_k: s.TopK = None,
    top_p: s.TopP = None,
    min_p: s.MinP = None,
    repetition_penalty: s.RepetitionPenalty = None,
    presence_penalty: s.PresencePenalty = 0.0,
    frequency_penalty: s.FrequencyPenalty = 0.0,
    logit_bias: s.LogitBias = None,
    stop: s.Stop = None,
    stop_token_ids: s.StopTokenIds = None,
    ignore_eos: s.IgnoreEos = False,
    show_special: s.ShowSpecial = False,
    logprobs: s.Logprobs = None,
    n: s.Samples = 1,
    seed: s.Seed = None,
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
    draft: Annotated[
        str, typer.Option("--draft", help="n-gram drafts: off, ngram, or auto (verified where that pays).")
    ] = "auto",
    overlap: o.Overlap = "none",
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """Generate text with a model split over this machine's devices."""
    with s.named_as_options():
        given: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": s.read_biases(logit_bias),
            "stop": stop or (),
            "stop_token_ids": () if stop_token_ids is None else s.token_ids("stop_token_ids", stop_token_ids),
            "ignore_eos": ignore_eos,
            "skip_special_tokens": not show_special,
            "logprobs": logprobs,
            "n": n,
            "seed": seed,
        }
    own = s.completed(given, {}, None)  # what is wrong is said before anything is opened
    run_options = RunOptions(overlap_of(overlap))
    asked = p.read_chat(prompt, chat, system, messages, chat_template_kwargs)
    run = o.read_placement(plan, mesh, devices, ffn, attention, prefill_ffn, prefill_attention)
    from partita.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(model)
    ids, shown = p.prompt_of(checkpoint, prompt, prompt_ids, asked)
    longest = checkpoint.model.max_context
    sampling = s.completed(given, checkpoint.sampling, longest and longest - len(ids))
    if sampling.greedy and (idle := s.drawn_only(own)):
        show_note(f"at temperature 0 the likeliest token is always taken; without effect: {', '.join(idle)}")
    if sampling.seed is None:  # said in what is printed, so that it can be had again
        sampling = sampling.model_copy(update={"seed": secrets.randbits(63)})
    s.check_tokens(sampling, checkpoint.model.vocabulary)
    planned = run.plan and run.plan.setting.model.name
    if planned is not None and planned != checkpoint.model.name:
        show_note(f"the plan was made for {planned}; its mesh and layouts run {checkpoint.model.name}")
    request = EngineRequest(
        dtype=dtype,
        weights=weights,
        kv=kv,
        chunk=chunk,
        run_options=run_options,
        devices=devices,
        draft=check_draft(draft),
        force=force,
        words={**o.RUN, "n": "--n {}", "max_tokens": "--max-tokens {}"},
    )
    if (error := checkpoint.tokenizer_error) is not None:
        show_note(f"the tokenizer is not understood, so the text is shown as token ids ({error})")
    engine = load_engine(checkpoint, run, request, ids, sampling)
    answers, seconds = stream(engine, ids, sampling, shown, quiet=json)
    if json:
        from partita.engine.requests import fitted

        used = fitted(checkpoint.model, len(ids), sampling)
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
                "sampling": s.as_json(used, given, checkpoint.sampling),
                "seconds": {**seconds, "note": "each phase's first step compiles"},
            }
        )
