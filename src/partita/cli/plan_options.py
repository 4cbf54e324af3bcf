"""The options of `partita plan`, and the question they ask of the planner.

Knows the forms that options are written in; what is chosen among them is the planner's.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from partita.cli import options as o
from partita.errors import InputError
from partita.planner.ask import Ask, formats_of
from partita.planner.basis import BASES, parse_basis
from partita.planner.chips import parse_clusters
from partita.planner.pair import parse_objective
from partita.planner.regimes import REGIMES, Regime, regime
from partita.sharding.mesh import parse_mesh
from partita.specs.formats import Float, Format
from partita.specs.trace import read_trace
from partita.specs.traffic import RANGES, Lengths, Traffic, parse_lengths, whole
from partita.specs.units import parse_bytes, parse_duration, parse_rate
from partita.specs.workload import Workload

Text = str | None
_MOST = 10**9
ClusterOrFamily = Annotated[
    str,
    typer.Option(
        "--on", metavar="CLUSTER", help="tpu-v4:4x4x4, a TOML file, or h100:auto to choose the chips."
    ),
]
Prompt = Annotated[
    Text,
    typer.Option("--prompt", help="Prompt tokens, or a distribution: 512:0.7,4096:0.3. 2048 unless given."),
]
Output = Annotated[
    Text, typer.Option("--output", help="Tokens each sequence generates, or a distribution. 64 unless given.")
]
Prefix = Annotated[
    Text, typer.Option("--prefix", help="Of each prompt, tokens cached already; or a distribution.")
]
Trace = Annotated[
    Text, typer.Option("--trace", help="CSV of requests: prompt,output and perhaps prefix,weight.")
]
RegimeName = Annotated[
    Text, typer.Option("--regime", help=f"Preset of the paper: {', '.join(REGIMES)}; other options win.")
]
BatchText = Annotated[
    Text, typer.Option("--batch", help="Sequences decoded together, or auto, which it is unless given.")
]
PrefillBatch = Annotated[Text, typer.Option("--prefill-batch", help="Prompts prefilled together, or auto.")]
Chunk = Annotated[
    Text, typer.Option("--chunk", help="Prompt tokens in one prefill step, or auto; whole unless given.")
]
WeightsText = Annotated[Text, typer.Option("--weights", help="bf16 (unless given), int8, f32, or auto.")]
KvText = Annotated[Text, typer.Option("--kv", help="bf16 (unless given), int8, f32, or auto.")]
ObjectiveText = Annotated[
    Text, typer.Option("--objective", help="latency (unless given), cost, throughput or context.")
]
ByText = Annotated[
    Text,
    typer.Option(
        "--by",
        metavar="|".join(BASES),
        help="What is ranked and limited: the estimate where the profile compares layouts, else the bound.",
    ),
]
MaxTtft = Annotated[Text, typer.Option("--max-ttft", help="Limit on the time to first token: 300ms.")]
MaxTpot = Annotated[Text, typer.Option("--max-tpot", help="Limit on a decode step: 30ms.")]
MaxChips = Annotated[int | None, typer.Option("--max-chips", help="Most chips to use.")]
Memory = Annotated[Text, typer.Option("--memory", help="Most memory of a chip to use: 70GB.")]
Rate = Annotated[Text, typer.Option("--rate", help="Prompts that arrive: 3/s. The plan must sustain it.")]
Stages = Annotated[
    Text, typer.Option("--stages", help="Pipeline stages over the nodes, or auto, which it is unless given.")
]


def read_ask(given: dict[str, Any]) -> tuple[Ask, Traffic | None]:
    """What is asked, from the options of the command by name; and the traffic where requests differ."""
    preset = None if given["regime"] is None else regime(given["regime"])
    batch, auto_batch = _whole_or_auto("batch", given["batch"])
    auto_batch = auto_batch or (given["batch"] is None and preset is None)
    prefill_batch, auto_prefill = _whole_or_auto("prefill-batch", given["prefill_batch"])
    chunk, auto_chunk = _whole_or_auto("chunk", given["chunk"])
    stages, auto_stages = _whole_or_auto("stages", given["stages"])
    traffic = _traffic(given, preset)
    sizes = _sizes(given, preset, traffic)
    if preset is not None and not auto_batch:
        batch = preset.batch if batch is None else batch
        if prefill_batch is None and not auto_prefill:
            prefill_batch = min(preset.prefill_batch, batch)
    workload = Workload(
        **sizes,
        batch=1 if batch is None else batch,
        prefill_batch=prefill_batch,
        context=_context(given["context"], traffic),
        chunk=chunk,
        samples=given["samples"],
    )
    if auto_batch and prefill_batch is not None:
        raise InputError("prefill-batch", prefill_batch, "needs --batch N: with auto both batches are chosen")
    weights = _given(given["weights"], preset.weights if preset else "bf16")
    kv = _given(given["kv"], preset.kv if preset else "bf16")
    ask = Ask(
        model=o.read_model(given["model"]),
        clusters=tuple(parse_clusters(given["on"], given["max_chips"])),
        formats=formats_of(
            _formats("weights", weights),
            _formats("kv", kv),
            _one_of("activations", given["activations"], get_args(Float)),
            _one_of("reduce", given["reduce"], get_args(Float)),
        ),
        workload=workload,
        traffic=traffic,
        objective=parse_objective(_given(given["objective"], preset.objective if preset else "latency")),
        auto_batch=auto_batch,
        auto_prefill_batch=auto_prefill,
        auto_chunk=auto_chunk,
        mesh=None if given["mesh"] is None else parse_mesh(given["mesh"]),
        stages=None if auto_stages or given["stages"] is None else stages,
        max_ttft=None if given["max_ttft"] is None else parse_duration(given["max_ttft"], "max-ttft"),
        max_tpot=None if given["max_tpot"] is None else parse_duration(given["max_tpot"], "max-tpot"),
        rate=None if given["rate"] is None else parse_rate(given["rate"], "rate"),
        memory_bytes=None if given["memory"] is None else parse_bytes(given["memory"], "memory"),
        basis=None if given["by"] is None else parse_basis(given["by"]),
    )
    return ask, traffic


def _whole_or_auto(field: str, text: str | None) -> tuple[int | None, bool]:
    """A number, and whether it is left to the planner; neither where the option is not given."""
    if text is None or text == "auto":
        return None, text == "auto"
    number = whole(text, 1, _MOST)
    if number is None:
        raise InputError(field, text, f"a whole number from 1 to {_MOST:,}, or auto, is accepted")
    return number, False


def _given(text: str | None, usual: str) -> str:
    return usual if text is None else text


def _one_of(field: str, text: str, accepted: tuple[str, ...]) -> str:
    if text not in accepted:
        raise InputError(field, text, f"accepted are {', '.join(accepted)}")
    return text


def _formats(field: str, text: str) -> list[str]:
    _one_of(field, text, (*get_args(Format), "auto"))
    return ["bf16", "int8"] if text == "auto" else [text]


def _traffic(given: dict[str, Any], preset: Regime | None) -> Traffic | None:
    """The requests, where they are a distribution or a trace."""
    texts = {name: given[name] for name in ("prompt", "output", "prefix") if given[name] is not None}
    if given["trace"] is not None:
        if texts:
            name = next(iter(texts))
            raise InputError(name, texts[name], "a trace says that itself: give one of the two")
        return read_trace(given["trace"])
    if not any(mark in text for text in texts.values() for mark in ":,"):
        return None
    lengths: dict[str, int | Lengths] = {name: parse_lengths(text, name) for name, text in texts.items()}
    own = {"prompt": 2048, "output": 64, "prefix": 0}
    for name, usual in own.items():
        lengths.setdefault(name, getattr(preset, name) if preset else usual)
    return Traffic.of(lengths["prompt"], lengths["output"], lengths["prefix"])


def _sizes(given: dict[str, Any], preset: Regime | None, traffic: Traffic | None) -> dict[str, int]:
    """Prompt, output and prefix of the workload: of traffic the means, rounded."""
    if traffic is not None:
        prompt, prefix = max(1, round(traffic.mean_prompt)), round(traffic.mean_prefix)
        return {
            "prompt": prompt,
            "output": max(1, round(traffic.mean_output)),
            "prefix": min(prefix, prompt - 1),
        }
    usual = {"prompt": 2048, "output": 64, "prefix": 0}
    found = {}
    for name, default in usual.items():
        text = given[name]
        if text is None:
            found[name] = getattr(preset, name) if preset else default
        else:
            least, most = RANGES[name]
            number = whole(text, least, most)
            if number is None:
                accepted = (
                    f"a whole number from {least} to {most:,}, or a distribution such as 512:0.7,4096:0.3"
                )
                raise InputError(name, text, f"{accepted}, is accepted")
            found[name] = number
    if preset is not None and given["prefix"] is None and found["prefix"] >= found["prompt"]:
        raise InputError(
            "prompt",
            given["prompt"],
            f"the regime {preset.name} has a prefix of {preset.prefix} cached tokens: give a longer prompt, "
            "or --prefix too",
        )
    return found


def _context(context: int | None, traffic: Traffic | None) -> int | None:
    """Positions of a slot's cache; for traffic those of its longest request."""
    if traffic is None:
        return context
    if context is not None and context < traffic.longest:
        raise InputError(
            "context", context, f"the longest request has {traffic.longest} tokens: that many or more"
        )
    return context or traffic.longest
