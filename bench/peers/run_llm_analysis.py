"""llm-analysis: one call prices the prefill and a decode step of one tensor-parallel size, batch and prompt.

Weights, cache and activations by part; the objects that a setting does not change are made once.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging

from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import (
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)
from rate import measure, read_job, report

job = read_job()
logging.disable(logging.CRITICAL)
model = ModelConfig(
    name="llama3-70b",
    num_layers=80,
    n_head=64,
    hidden_dim=8192,
    vocab_size=128256,
    max_seq_len=8192,
    num_key_value_heads=8,
    ffn_embed_dim=28672,
    expansion_ratio=3.5,
    model_type="llama",
)
gpu, dtype = get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")
splits = (4, 8)
analyses = {n: LLMAnalysis(model, gpu, dtype, ParallelismConfig(tp_size=n)) for n in splits}


def price(split: int, batch: int, context: int) -> dict[str, float]:
    found = analyses[split].inference(batch_size_per_gpu=batch, seq_len=context, num_tokens_to_generate=64)
    return {
        "prefill_ms": found["prefill_latency"] * 1e3,
        "decode_step_ms": found["decode_latency"] * 1e3,
        "weights_gb": found["weight_memory_per_gpu"] / 1e9,
    }


# it says with an AssertionError that memory runs out
report(measure(price, splits, job.seconds, phases=2, refused=(AssertionError,)))
