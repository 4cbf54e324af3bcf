"""A plan as options of vLLM, SGLang and TensorRT-LLM: tensor, pipeline and data parallelism, and one layout.

`EngineFlags` is a plan as the options of any engine; `split` and `serving` are what engines need.

Options as documented for vLLM 0.25 (docs.vllm.ai: engine arguments, data parallel deployment, context
parallel deployment), SGLang (docs.sglang.io: server arguments; DP, DPA and router; decode context
parallelism) and TensorRT-LLM 1.x (nvidia.github.io/TensorRT-LLM: trtllm-serve, LLM API's KvCacheConfig).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from partita.cost.prediction import Prediction
from partita.planner.pair import Pair
from partita.specs.units import format_count


@dataclass(frozen=True)
class EngineFlags:
    """A plan as the options of one engine, or why there are none."""

    engine: str
    source: str
    """Where the options are documented."""
    options: dict[str, str]
    """Option -> value, "" where it takes none; empty where the plan cannot be expressed."""
    command: str
    """The options as a command line (a configuration, in MaxText); empty likewise."""
    differs: tuple[str, ...]
    """What the engine does differently from the plan, although these options come closest to it."""
    cannot: tuple[str, ...]
    """The parts of the plan that it cannot express, by name; empty where it can express all."""

    @property
    def expressible(self) -> bool:
        return not self.cannot

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "source": self.source,
            "expressible": self.expressible,
            "options": self.options,
            "command": self.command,
            "differs": list(self.differs),
            "cannot": list(self.cannot),
        }


@dataclass(frozen=True)
class Split:
    """Chips by the role they play in one phase: products of the sizes of mesh axes."""

    e: int  # weights kept split on d_model
    f: int  # weights kept split on d_ff and heads
    gathered_e: int
    gathered_f: int
    replicas: int
    batch: int  # of e and f together, those that attention splits sequences over
    context: int  # likewise, query tokens in prefill and cached positions in decode
    heads: int
    whole: int  # likewise, nothing

    @property
    def gathered(self) -> int:
        return self.gathered_e * self.gathered_f


def split(prediction: Prediction) -> Split:
    """The chips of each role of a phase."""
    roles, size = prediction.layout.roles, prediction.setting.mesh.size
    weights, attends = dict(roles.weights), dict(roles.attends)
    kept = [axis for axis, role in weights.items() if role in ("e", "f")]

    def chips(axes: Iterable[str]) -> int:
        return math.prod(size[axis] for axis in axes)

    def of(role: str) -> int:
        return chips(a for a, found in weights.items() if found == role)

    def over(role: str) -> int:
        return chips(a for a in kept if attends[a] == role)

    return Split(
        e=of("e"),
        f=of("f"),
        gathered_e=of("e-gathered"),
        gathered_f=of("f-gathered"),
        replicas=of("replica"),
        batch=over("batch"),
        context=over("context"),
        heads=over("heads"),
        whole=over("none"),
    )


@dataclass(frozen=True)
class Serving:
    """What engines need besides the split; tokens are of one sequence."""

    tensor: int  # ways of tensor parallelism
    stages: int
    replicas: int
    batch: int  # sequences decoded together, over all replicas
    context: int  # longest sequence
    prompt: int
    step_tokens: int  # prompt tokens of one prefill step, over all replicas
    chunked: bool
    prefix: bool
    weights: str
    activations: str
    kv: str


def serving(pair: Pair) -> Serving:
    """What a pair's setting requires of engines."""
    setting, decode = pair.decode.setting, split(pair.decode)
    workload, formats = setting.workload, setting.formats
    new = workload.prompt - workload.prefix
    return Serving(
        tensor=decode.f,
        stages=setting.stages,
        replicas=decode.replicas,
        batch=workload.batch,
        context=workload.context,
        prompt=workload.prompt,
        step_tokens=workload.prefill_batch * min(workload.chunk or new, new),
        chunked=workload.chunk is not None,
        prefix=workload.prefix > 0,
        weights=formats.weights,
        activations=formats.activations,
        kv=formats.kv,
    )


def command(start: str, options: dict[str, str]) -> str:
    """`vllm serve llama3-70b --tensor-parallel-size 8`."""
    return " ".join([start, *(f"{name} {value}".strip() for name, value in options.items())])


_DTYPES = {"bf16": "bfloat16", "f32": "float32"}


def vllm(pair: Pair) -> EngineFlags:
    """`vllm serve`: tensor, pipeline and data parallelism, decode context parallelism within tensor's."""
    asked, decode = serving(pair), split(pair.decode)
    prefill = split(pair.prefill)
    cannot = [*_one_layout(pair, "vLLM", decode_context=True), *_divides(pair, asked)]
    if max(decode.batch, prefill.batch) > 1:
        cannot.append(
            "attention over batch with tensor-parallel weights: vLLM has that for the experts of MoE only"
        )
    heads = pair.decode.setting.model.kv_heads if pair.decode.setting.model.latent is None else 1
    if decode.context > 1 and (asked.tensor % decode.context or decode.context * heads > asked.tensor):
        cannot.append(
            f"attention over context {decode.context} ways: decode context parallelism takes at most "
            f"tensor-parallel size / KV heads, {asked.tensor}/{heads}"
        )
    options = {
        "--tensor-parallel-size": str(asked.tensor),
        **_some("--pipeline-parallel-size", asked.stages),
        **_some("--data-parallel-size", asked.replicas),
        **_some("--decode-context-parallel-size", decode.context),
        "--max-num-seqs": str(-(-asked.batch // asked.replicas)),
        "--max-model-len": str(asked.context),
        "--dtype": _DTYPES[asked.activations],
        "--kv-cache-dtype": {"int8": "int8_per_token_head", "bf16": "bfloat16"}.get(asked.kv, "auto"),
    }
    a_replica = -(-asked.step_tokens // asked.replicas)
    if asked.chunked:
        options |= {"--enable-chunked-prefill": "", "--max-num-batched-tokens": str(a_replica)}
    else:  # whole prompts: a step must have room for the longest sequence
        most = str(max(a_replica, asked.context))
        options |= {"--no-enable-chunked-prefill": "", "--max-num-batched-tokens": most}
    if asked.prefix:
        options["--enable-prefix-caching"] = ""
    source = "https://docs.vllm.ai/en/latest/configuration/engine_args/"
    return _flags("vLLM", source, "vllm serve MODEL", options, _formats(asked, "vLLM"), cannot)


def sglang(pair: Pair) -> EngineFlags:
    """`sglang.launch_server`: as vLLM, and attention over batch (DP attention) inside tensor parallelism."""
    asked, decode = serving(pair), split(pair.decode)
    latent = pair.decode.setting.model.latent is not None
    cannot = [*_one_layout(pair, "SGLang", decode_context=latent), *_divides(pair, asked, decode.batch)]
    if decode.context > 1 and not latent:
        cannot.append(
            "attention over context: SGLang's decode context parallelism is for latent (MLA) caches"
        )
    if decode.batch > 1 and asked.replicas > 1:
        cannot.append(
            "replicas besides attention over batch: --dp-size expresses one of them; start each replica alone"
        )
    differs = list(_formats(asked, "SGLang"))
    options = {
        "--tp-size": str(asked.tensor),
        **_some("--pp-size", asked.stages),
        **_some("--dp-size", decode.batch if decode.batch > 1 else asked.replicas),
        **_some("--dcp-size", decode.context),
    }
    if decode.batch > 1:
        options["--enable-dp-attention"] = ""
        differs.append(_whole_attention(pair, decode.batch))
    options |= {
        "--max-running-requests": str(asked.batch),
        "--context-length": str(asked.context),
        "--chunked-prefill-size": str(asked.step_tokens) if asked.chunked else "-1",
        "--dtype": _DTYPES[asked.activations],
        "--kv-cache-dtype": "fp8_e4m3" if asked.kv == "int8" else "auto",
    }
    if asked.kv == "int8":
        differs.append("KV cache int8: SGLang has fp8, of the same size")
    start = "python -m sglang.launch_server --model-path MODEL"
    source = "https://docs.sglang.io/advanced_features/server_arguments.html"
    return _flags("SGLang", source, start, options, differs, cannot)


def tensorrt_llm(pair: Pair) -> EngineFlags:
    """`trtllm-serve` and the keys of its configuration file, written as `file:key`."""
    asked, decode = serving(pair), split(pair.decode)
    cannot = [*_one_layout(pair, "TensorRT-LLM"), *_divides(pair, asked, decode.batch)]
    if decode.context > 1:
        cannot.append(
            "attention over context: TensorRT-LLM splits a dense model's cache by heads or sequences"
        )
    if 1 < decode.batch != asked.tensor:
        cannot.append(
            f"attention over batch {decode.batch} ways: enable_attention_dp takes all {asked.tensor} ways"
        )
    if asked.replicas > 1:
        cannot.append(
            f"{asked.replicas} replicas: one server is one replica; start it {asked.replicas} times"
        )
    differs = list(_formats(asked, "TensorRT-LLM"))
    options = {
        "--tp_size": str(asked.tensor),
        **_some("--pp_size", asked.stages),
        "--max_batch_size": str(asked.batch),
        "--max_num_tokens": str(max(asked.step_tokens, asked.batch)),
        "--max_seq_len": str(asked.context),
    }
    if asked.chunked:
        options["--enable_chunked_prefill"] = ""
    file = {}
    if decode.batch > 1:
        file["enable_attention_dp"] = "true"
        differs.append(_whole_attention(pair, decode.batch))
    if asked.kv == "int8":
        file["kv_cache_config"] = "{dtype: fp8}"
        differs.append("KV cache int8: TensorRT-LLM's PyTorch back end has fp8, of the same size")
    if file:
        options["--config"] = "config.yaml"
    start = "trtllm-serve MODEL"
    source = "https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/"
    found = _flags("TensorRT-LLM", source, start, options, differs, cannot)
    if not file or cannot:
        return found
    inside = "; ".join(f"{key}: {value}" for key, value in file.items())
    return EngineFlags(
        found.engine,
        source,
        options | {f"config.yaml:{key}": value for key, value in file.items()},
        f"{found.command}  # config.yaml: {inside}",
        found.differs,
        found.cannot,
    )


def _flags(
    engine: str, source: str, start: str, options: dict[str, str], differs: list[str], cannot: list[str]
) -> EngineFlags:
    if cannot:
        return EngineFlags(engine, source, {}, "", (), tuple(cannot))
    return EngineFlags(engine, source, options, command(start, options), tuple(differs), ())


def _some(option: str, number: int) -> dict[str, str]:
    return {option: str(number)} if number > 1 else {}


def _one_layout(pair: Pair, engine: str, *, decode_context: bool = False) -> Iterator[str]:
    """What none of these engines has: weights split on d_model or gathered, and a layout for each phase."""
    prefill, decode = pair.prefill.layout.roles, pair.decode.layout.roles
    size = pair.decode.setting.mesh.size
    apart = [a for (a, one), (_, other) in zip(prefill.weights, decode.weights, strict=True) if one != other]
    attends = zip(prefill.attends, decode.attends, strict=True)
    # a decode-only split of the cache is no layout of its own where prefill splits heads
    allowed = {("heads", "context")} if decode_context else set()
    apart += [a for (a, one), (_, other) in attends if one != other and (one, other) not in allowed]
    if any(size[a] > 1 for a in apart):
        yield (
            f"a layout for each phase (prefill {prefill}, decode {decode}): {engine} has one for both, "
            "unless prefill and decode run in servers of their own"
        )
    for name, found in (("prefill", split(pair.prefill)), ("decode", split(pair.decode))):
        yield from _weights(name, found, engine)
        if found.whole > 1:
            yield f"attention split over nothing on {found.whole} chips in {name}: {engine} splits heads"
    if split(pair.prefill).context > 1:
        yield f"attention over context in prefill: {engine} splits the heads of dense attention"


def _weights(phase: str, found: Split, engine: str) -> Iterator[str]:
    if found.e > 1:
        yield (
            f"2D weight-stationary {phase} ({found.e} x {found.f}): {engine} splits each matrix on one dim, "
            "d_ff and heads, never on d_model as well"
        )
    if found.gathered > 1:
        yield (
            f"weight-gathered {phase} ({found.gathered} ways): {engine} moves activations to the weights, "
            "never weights to the activations"
        )


def _divides(pair: Pair, asked: Serving, data: int = 1) -> Iterator[str]:
    """Query heads must divide over the tensor-parallel chips; KV heads divide, or the chips divide over them.

    `data`: chips of attention's own data parallelism, over which heads are not split.
    """
    model, ways = pair.decode.setting.model, asked.tensor // data or 1
    if model.heads % ways:
        yield f"{model.heads} heads over {ways} chips: they must divide, the engine does not pad them"
    elif model.latent is None and model.kv_heads % ways and ways % model.kv_heads:
        yield f"{model.kv_heads} KV heads over {ways} chips: one must divide the other"


def _whole_attention(pair: Pair, copies: int) -> str:
    """What data parallelism of attention alone costs: it gives each of its ranks whole heads."""
    model = pair.decode.setting.model
    number = format_count(model.layers * model.attention_parameters)
    return f"attention's {number} parameters are kept {copies} times, where the plan splits them"


def _formats(asked: Serving, engine: str) -> list[str]:
    if asked.weights == "int8":
        return [f"weights int8: {engine} reads the format from a checkpoint that is already quantised"]
    if asked.weights != asked.activations:
        return [f"weights {asked.weights}: {engine} keeps them in the format of activations"]
    return []
