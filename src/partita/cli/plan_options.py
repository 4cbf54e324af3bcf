"""The options of `partita plan`, and the parts of a `PlanRequest` that they give.

Knows the forms that options are written in; what is chosen among them is the planner's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from partita.errors import InputError
from partita.planner.pair import BASES, Objective, parse_objective
from partita.planner.regimes import REGIMES, Regime
from partita.planner.request import formats_of
from partita.specs.formats import Float, Format, Formats
from partita.specs.hardware import MEMORY_UTILIZATION, read_utilization
from partita.specs.trace import read_trace
from partita.specs.traffic import RANGES, Lengths, Traffic, parse_lengths, whole
from partita.specs.units import parse_bytes
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
    typer.Option("--prompt", help="Prompt tokens, or a distribution: 512:0.7,4096:0.3. Default: 2048."),
]
Output = Annotated[
    Text, typer.Option("--output", help="Tokens each sequence generates, or a distribution. Default: 64.")
]
Prefix = Annotated[
    Text, typer.Option("--prefix", help="Cached tokens at the start of each prompt, or a distribution.")
]
Trace = Annotated[
    Text, typer.Option("--trace", help="CSV of requests: columns prompt,output and optionally prefix,weight.")
]
RegimeName = Annotated[
    Text, typer.Option("--regime", help=f"Preset of the paper: {', '.join(REGIMES)}; other options win.")
]
BatchText = Annotated[
    Text, typer.Option("--batch", help="Sequences decoded together, or auto (the default).")
]
PrefillBatch = Annotated[
    Text, typer.Option("--prefill-batch", help="Prompts prefilled together, or auto (the default).")
]
Chunk = Annotated[
    Text,
    typer.Option(
        "--chunk",
        help="Prompt tokens in one prefill step, read between two decode steps, or auto. Default: the whole "
        "prompt, or chunks where these are better.",
    ),
]
WeightsText = Annotated[Text, typer.Option("--weights", help="bf16 (the default), int8, f32, or auto.")]
KvText = Annotated[Text, typer.Option("--kv", help="bf16 (the default), int8, f32, or auto.")]
ObjectiveText = Annotated[
    Text, typer.Option("--objective", help="latency (the default), cost, throughput or context.")
]
ByText = Annotated[
    Text,
    typer.Option(
        "--by",
        metavar="|".join(BASES),
        help="Times to rank by. Default: the estimate where the profile compares layouts, else the bound.",
    ),
]
MaxTtft = Annotated[Text, typer.Option("--max-ttft", help="Limit on the time to first token: 300ms.")]
MaxTpot = Annotated[Text, typer.Option("--max-tpot", help="Limit on a decode step: 30ms.")]
MaxChips = Annotated[int | None, typer.Option("--max-chips", help="Most chips to use.")]
Memory = Annotated[Text, typer.Option("--memory", help="Most memory to use of each chip: 70GB.")]
MemoryUtilization = Annotated[
    Text,
    typer.Option(
        "--memory-utilization", help=f"Part of each chip's memory to use. Default: {MEMORY_UTILIZATION:g}."
    ),
]
Rate = Annotated[
    Text, typer.Option("--rate", help="Arrival rate of prompts, which the plan must sustain: 3/s.")
]
DraftText = Annotated[
    Text,
    typer.Option(
        "--draft",
        help="Also price decode with drafts: mtp, eagle3 or ngram, such as mtp,acceptance=0.85,k=1.",
    ),
]
Stages = Annotated[
    Text, typer.Option("--stages", help="Pipeline stages over the nodes, or auto (the default).")
]


@dataclass(frozen=True)
class SizeOptions:
    """The sizes that `partita plan` may choose: each as given or None, and whether it is left open."""

    batch: int | None
    prefill_batch: int | None
    chunk: int | None
    stages: int | None
    auto_batch: bool
    auto_prefill_batch: bool
    auto_chunk: bool
    between: bool
    """Whether the limit on a decode step holds with a chunk of a prompt read before it."""


def read_sizes(
    batch: Text, prefill_batch: Text, chunk: Text, stages: Text, preset: Regime | None
) -> SizeOptions:
    """Every size is left open unless it is given, by its option or by a preset."""
    decoded, prefilled = _whole_or_auto("batch", batch), _whole_or_auto("prefill-batch", prefill_batch)
    chunked, staged = _whole_or_auto("chunk", chunk), _whole_or_auto("stages", stages)
    if preset is not None and batch != "auto":
        decoded = preset.batch if decoded is None else decoded
        if prefill_batch is None:
            prefilled = min(preset.prefill_batch, decoded)
    return SizeOptions(
        decoded,
        prefilled,
        chunked,
        staged,
        auto_batch=decoded is None,
        auto_prefill_batch=prefilled is None,
        auto_chunk=chunked is None,
        between=chunk is not None,
    )


@dataclass(frozen=True)
class TokenOptions:
    """Tokens of the requests to plan for, as the options give them; a preset has those that they do not."""

    prompt: Text
    output: Text
    prefix: Text
    trace: Text
    preset: Regime | None

    def texts(self) -> dict[str, Text]:
        return {"prompt": self.prompt, "output": self.output, "prefix": self.prefix}

    def usual(self) -> dict[str, int]:
        """The tokens of the options that are not given."""
        if self.preset is None:
            return {"prompt": 2048, "output": 64, "prefix": 0}
        return {"prompt": self.preset.prompt, "output": self.preset.output, "prefix": self.preset.prefix}

    def traffic(self) -> Traffic | None:
        """The requests, where they are a distribution or a trace."""
        texts = {name: text for name, text in self.texts().items() if text is not None}
        if self.trace is not None:
            if texts:
                name = next(iter(texts))
                raise InputError(name, texts[name], "a trace gives this too; give only one of the two")
            return read_trace(self.trace)
        if not any(mark in text for text in texts.values() for mark in ":,"):
            return None
        given: dict[str, int | Lengths] = {name: parse_lengths(text, name) for name, text in texts.items()}
        lengths = {**self.usual(), **given}
        return Traffic.of(lengths["prompt"], lengths["output"], lengths["prefix"])

    def means(self, traffic: Traffic | None) -> dict[str, int]:
        """Prompt, output and prefix of the workload: for traffic, the rounded means."""
        if traffic is not None:
            prompt, prefix = max(1, round(traffic.mean_prompt)), round(traffic.mean_prefix)
            output = max(1, round(traffic.mean_output))
            return {"prompt": prompt, "output": output, "prefix": min(prefix, prompt - 1)}
        found = self.usual()
        for name, text in self.texts().items():
            if text is None:
                continue
            least, most = RANGES[name]
            number = whole(text, least, most)
            if number is None:
                accepted = (
                    f"a whole number from {least} to {most:,}, or a distribution such as 512:0.7,4096:0.3"
                )
                raise InputError(name, text, f"{accepted}, is accepted")
            found[name] = number
        preset = self.preset
        if preset is not None and self.prefix is None and found["prefix"] >= found["prompt"]:
            raise InputError(
                "prompt",
                self.prompt,
                f"the regime {preset.name} has a prefix of {preset.prefix} cached tokens: give a longer "
                "prompt, or --prefix too",
            )
        return found


def read_workload(
    tokens: TokenOptions, traffic: Traffic | None, sizes: SizeOptions, context: int | None, samples: int
) -> Workload:
    """The workload to plan for; where sizes are left open, with the smallest."""
    workload = Workload(
        **tokens.means(traffic),
        batch=1 if sizes.batch is None else sizes.batch,
        prefill_batch=sizes.prefill_batch,
        context=_context(context, traffic),
        chunk=sizes.chunk,
        samples=samples,
    )
    return workload


def read_memory(memory: Text, utilization: Text) -> tuple[int | None, float | None]:
    """Bytes of each chip, or the part of it, that may be used."""
    if memory is not None and utilization is not None:
        raise InputError("memory-utilization", utilization, "give it or --memory, not both")
    return (
        None if memory is None else parse_bytes(memory, "memory"),
        None if utilization is None else read_utilization(utilization, "memory-utilization"),
    )


def read_formats(
    weights: Text, kv: Text, activations: str, reduce: str, preset: Regime | None
) -> tuple[Formats, ...]:
    """The formats to choose from."""
    usual = (preset.weights, preset.kv) if preset else ("bf16", "bf16")
    return formats_of(
        _formats("weights", usual[0] if weights is None else weights),
        _formats("kv", usual[1] if kv is None else kv),
        _one_of("activations", activations, get_args(Float)),
        _one_of("reduce", reduce, get_args(Float)),
    )


def read_objective(text: Text, preset: Regime | None) -> Objective:
    """The objective as given, else the preset's, else latency."""
    usual: Objective = preset.objective if preset else "latency"
    return usual if text is None else parse_objective(text)


def _whole_or_auto(field: str, text: str | None) -> int | None:
    """A number; None where it is left to the planner."""
    if text is None or text == "auto":
        return None
    number = whole(text, 1, _MOST)
    if number is None:
        raise InputError(field, text, f"a whole number from 1 to {_MOST:,}, or auto, is accepted")
    return number


def _one_of(field: str, text: str, accepted: tuple[str, ...]) -> str:
    if text not in accepted:
        raise InputError(field, text, f"accepted are {', '.join(accepted)}")
    return text


def _formats(field: str, text: str) -> list[str]:
    _one_of(field, text, (*get_args(Format), "auto"))
    return ["bf16", "int8"] if text == "auto" else [text]


def _context(context: int | None, traffic: Traffic | None) -> int | None:
    """Positions of a slot's cache; for traffic those of its longest request."""
    if traffic is None:
        return context
    if context is not None and context < traffic.longest:
        raise InputError(
            "context",
            context,
            f"the longest request has {traffic.longest} tokens; at least as many are needed",
        )
    return context or traffic.longest
