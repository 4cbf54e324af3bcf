"""aiconfigurator: one call prices one phase of one tensor-parallel size, batch and context.

Its time is that of measured operations, interpolated by a compiled core. Called as its own search calls it:
the database is read once, and each tensor-parallel size has one session. `cli_estimate`, its function for one
point, is timed too, since that is the rate a script around it gets, and so is its search.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import time

from aiconfigurator.cli.api import cli_default, cli_estimate
from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.config import RuntimeConfig
from aiconfigurator.sdk.config_builders import build_model_config
from aiconfigurator.sdk.inference_session import InferenceSession
from aiconfigurator.sdk.models import get_model
from aiconfigurator.sdk.perf_database import get_database_view, get_latest_database_version
from rate import measure, quiet, read_job, report

MODEL, SYSTEM, ENGINE = "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "trtllm"
PHASES = {"prefill_ms": "static_ctx", "decode_step_ms": "static_gen"}

job = read_job()
logging.disable(logging.CRITICAL)

begun = time.perf_counter()
with quiet():
    cli_default(MODEL, 8, SYSTEM, backend=ENGINE, isl=2048, osl=64, ttft=5000.0, tpot=40.0)
search_seconds = time.perf_counter() - begun

database = get_database_view(SYSTEM, ENGINE, get_latest_database_version(system=SYSTEM, backend=ENGINE))
engine, splits = get_backend(ENGINE), (4, 8)
sessions = {}
for split in splits:
    # tensor, pipeline and attention data parallel, then the two of experts, which this model has none of
    config = build_model_config(split, 1, 1, split, 1)
    sessions[split] = InferenceSession(get_model(MODEL, config, ENGINE), database, engine)


def price(split: int, batch: int, context: int) -> dict[str, float] | None:
    """None where it says that memory runs out. Two tokens out are the prefill's and one decode step."""
    runtime, found = RuntimeConfig(batch_size=batch, isl=context, osl=2), {}
    for name, mode in PHASES.items():
        summary = sessions[split].run_static(runtime_config=runtime, mode=mode)
        if summary.check_oom():
            return None
        answer = summary.get_result_dict()
        found |= {name: answer["request_latency"], "memory_gib": answer["memory"]}
    return found


def price_one_point(split: int, batch: int, context: int) -> float:
    asked = {"backend_name": ENGINE, "isl": context, "osl": 2, "batch_size": batch, "tp_size": split}
    return sum(cli_estimate(MODEL, SYSTEM, mode=mode, **asked).request_latency for mode in PHASES.values())


result = measure(price, splits, job.seconds, phases=len(PHASES))
by_point = measure(price_one_point, splits, job.seconds, phases=len(PHASES))
also = {
    "cli_estimate, configurations a second": by_point["configurations_per_second"],
    "cli_default, its search for 8 chips, seconds": search_seconds,
}
report(result | {"also": also})
