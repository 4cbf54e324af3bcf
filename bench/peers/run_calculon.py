"""calculon: one call prices the forward pass of one tensor- and pipeline-parallel split, batch and prompt.

A training model: its inference mode prices a prefill, there is no decode step and no cache. Every call has a
model of its own, since the prompt's length is part of the application. Its feed-forward has two matrices and
its heads are all key-value heads, so its 70B is not quite Llama's. It comes as a checkout, not as a package.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import logging
import sys

from rate import measure, read_job, report

job = read_job()
if job.source is None:
    sys.exit("calculon needs a checkout: --source PATH")
sys.path.insert(0, str(job.source))

from calculon.llm import Llm, System  # noqa: E402

system = System(json.loads((job.source / "systems" / "h100_80g_nvl8.json").read_text()))
silent = logging.Logger("calculon", logging.CRITICAL)


def price(split: int, batch: int, context: int) -> dict[str, float]:
    application = Llm.Application(
        {
            "hidden": 8192,
            "feedforward": 28672,
            "seq_size": context,
            "attn_heads": 64,
            "attn_size": 128,
            "num_blocks": 80,
        }
    )
    execution = Llm.Execution.from_json(
        {
            "num_procs": split,
            "tensor_par": split,
            "pipeline_par": 1,
            "data_par": 1,
            "tensor_par_net": 0,
            "pipeline_par_net": 0,
            "data_par_net": 0,
            "batch_size": batch,
            "microbatch_size": batch,
            "datatype": "float16",
            "fused_activation": True,
            "attention_type": "multihead",
            "activation_recompute": "none",
            "pipeline_interleaving": 1,
            "optimizer_sharding": False,
            "tensor_par_comm_type": "ar",
            "tensor_par_overlap": "none",
            "seq_par_ag_redo": False,
            "data_par_overlap": False,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": False,
        }
    )
    model = Llm(application, silent)
    model.compile(system, execution)
    model.run(system)
    found = dict(zip(Llm.get_stats_fields(), model.get_stats_values(), strict=True))
    return {"prefill_ms": found["total_time"] * 1e3, "weights_gb": found["weight_space"] / 1e9}


report(measure(price, (4, 8), job.seconds, phases=1, refused=(Llm.Error,)))
