"""What a plan looks like from another engine: how many chips split what, and the options that say so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from partita.cost.prediction import Prediction
from partita.planner.pair import Pair


@dataclass(frozen=True)
class EngineFlags:
    """A plan in one engine's words, or why it has none for it."""

    engine: str
    source: str
    """Where the options are documented."""
    options: dict[str, str]
    """Option -> value, "" where it takes none; empty where the plan cannot be expressed."""
    command: str
    """The options as a command line (a configuration, in MaxText); empty likewise."""
    differs: tuple[str, ...]
    """What the engine does otherwise than the plan although these options are its nearest words for it."""
    cannot: tuple[str, ...]
    """By name, what of the plan it cannot express; empty where it can."""

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
    """What engines ask for beside the split; tokens are of one sequence."""

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
    """What a pair's setting asks engines for."""
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
