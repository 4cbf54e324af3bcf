"""LLM-Viewer: one call prices a prefill and a decode step of one batch and context, on one chip.

It has no tensor parallelism, so its configurations differ in batch and context only. It comes as a checkout,
not as a package; its model is read from a `config.json` that this script writes, so nothing is downloaded.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from rate import measure, quiet, read_job, report

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
"""The sizes of Llama 3 70B."""

job = read_job()
if job.source is None:
    sys.exit("llm-viewer needs a checkout: --source PATH")
sys.path.insert(0, str(job.source))
os.chdir(job.source)
os.environ["HF_HUB_OFFLINE"] = "1"
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "config.json").write_text(json.dumps(CONFIG))
    with quiet():
        from model_analyzer import ModelAnalyzer

        analyzer = ModelAnalyzer(folder, "nvidia_H100_SXM", "configs/Llama.py")


def price(split: int, batch: int, context: int) -> dict[str, float]:
    found = analyzer.analyze(seqlen=context, batchsize=batch)["total_results"]
    return {
        "prefill_ms": found["prefill"]["inference_time"] * 1e3,
        "decode_step_ms": found["decode"]["inference_time"] * 1e3,
        "weights_gb": found["decode"]["memory_consumption_weight"] / 1e9,
    }


report(measure(price, (1,), job.seconds, phases=2))
