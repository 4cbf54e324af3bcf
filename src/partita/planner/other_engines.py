"""A plan in other engines' terms where it can be expressed, and by name what cannot be where not.

Each engine's file cites the documentation its options come from. Knows nothing about prices.
"""

from __future__ import annotations

from typing import Any

from partita.planner.gpu_engines import sglang, tensorrt_llm, vllm
from partita.planner.maxtext import maxtext
from partita.planner.pair import Pair
from partita.planner.partition_specs import partition_specs
from partita.planner.terms import Terms

__all__ = ["Terms", "in_other_terms", "other_engines", "partition_specs"]


def other_engines(pair: Pair) -> list[Terms]:
    """The pair for vLLM, SGLang, TensorRT-LLM and MaxText, in this order."""
    return [vllm(pair), sglang(pair), tensorrt_llm(pair), maxtext(pair)]


def in_other_terms(pair: Pair) -> dict[str, Any]:
    """JSON: `jax` (PartitionSpecs, which express every plan) and `engines`."""
    return {"jax": partition_specs(pair), "engines": [terms.as_json() for terms in other_engines(pair)]}
