"""GenZ: one call prices one phase of one tensor-parallel size, batch and context.

Its model set names a Llama 3.1 70B with the sizes of Llama 3 70B.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import warnings

from GenZ import decode_moddeling, prefill_moddeling
from rate import measure, read_job, report

MODEL, SYSTEM = "meta-llama/Llama-3.1-70B", "H100_GPU"

job = read_job()
warnings.simplefilter("ignore")


def price(split: int, batch: int, context: int) -> dict[str, float]:
    same = {
        "model": MODEL,
        "batch_size": batch,
        "input_tokens": context,
        "system_name": SYSTEM,
        "bits": "bf16",
        "tensor_parallel": split,
        "parallelism_heirarchy": f"TP{{{split}}}_EP{{1}}_PP{{1}}",
    }
    prefill = prefill_moddeling(**same)
    decode = decode_moddeling(Bb=1, output_tokens=1, **same)
    return {"prefill_ms": float(prefill["Latency"]), "decode_step_ms": float(decode["Latency"])}


# it says with a ValueError that memory runs out
report(measure(price, (4, 8), job.seconds, phases=2, refused=(ValueError,)))
