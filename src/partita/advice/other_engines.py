"""A plan in other engines' terms where it can be expressed, and by name what cannot be where not.

Each engine's file cites the documentation its options come from.
"""

from __future__ import annotations

from typing import Any

from partita.advice.gpu_engines import EngineFlags, sglang, tensorrt_llm, vllm
from partita.advice.maxtext import maxtext
from partita.advice.partition_specs import partition_specs
from partita.planner.pair import Pair

__all__ = ["EngineFlags", "in_other_terms", "other_engines", "partition_specs"]


def other_engines(pair: Pair) -> list[EngineFlags]:
    """The pair for vLLM, SGLang, TensorRT-LLM and MaxText, in this order."""
    return [vllm(pair), sglang(pair), tensorrt_llm(pair), maxtext(pair)]


def in_other_terms(pair: Pair) -> dict[str, Any]:
    """JSON: `jax` (PartitionSpecs, which express every plan) and `engines`."""
    return {"jax": partition_specs(pair), "engines": [terms.as_json() for terms in other_engines(pair)]}
