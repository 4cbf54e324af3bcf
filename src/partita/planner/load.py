"""A pair of layouts under the load of requests that are not all alike. Knows nothing about other pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.planner.basis import step_seconds
from partita.planner.pair import Pair
from partita.planner.traffic import Server, serve, server_of
from partita.specs.traffic import Traffic


def server(pair: Pair, traffic: Traffic | None) -> Server:
    """The server that a pair makes for its own workload, or for the requests of `traffic`."""
    if traffic is None:
        return server_of(pair)
    setting, batch = pair.decode.setting, pair.prefill.batch

    def seconds(prompt: int, prefix: int) -> float:
        """Of one prompt, its keys and values moved to decode's layout."""
        context = max(setting.workload.context, prompt + 1)
        sizes = {"prompt": prompt, "prefix": prefix, "context": context}
        changed = pair.priced_in(replace(setting, workload=setting.workload.resized(**sizes)))
        return (changed.ttft_seconds + changed.reshard_seconds) / batch

    def prefill(prompt: np.ndarray, prefix: np.ndarray) -> np.ndarray:
        return np.array([seconds(int(p), int(x)) for p, x in zip(prompt, prefix, strict=True)])

    def step(context: float) -> float:
        workload = setting.workload.resized(context=max(1, round(context)))
        return step_seconds(pair.decode.priced_in(replace(setting, workload=workload)), pair.basis)

    return serve(
        traffic,
        chips=setting.cluster.chips,
        slots=pair.decode.batch,
        prefill_seconds=prefill,
        step_seconds=step,
        samples=setting.workload.samples,
    )
