"""Partita: how many configurations one core prices a second, in the passes that its search is made of.

A configuration is one layout, mesh, batch and context for one phase, whole Transformer, with seconds and
bytes by part. Only legal ones are counted, though illegal cells of a pass take their time too. A round prices
every layout of a cluster at every batch and context: decode steps on caches of these lengths, and prefills of
`NEW_TOKENS` tokens behind prefixes that fill them up. The rate with one context a round is given beside it.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from peers.rate import read_job, report, timed

MODEL, CLUSTER = "llama3-70b", "h100:2x8"
MOST_AXES = 4  # all that 16 chips can have, so every layout of the space is priced
BATCHES = tuple(2**n for n in range(12))
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
NEW_TOKENS = 512  # of a prefill; the rest of its context is a cached prefix
SECONDS = ("compute_seconds", "weight_seconds", "kv_seconds", "communication_seconds")
BYTES = ("weight_bytes", "kv_bytes", "activation_bytes")


def partita_rate(seconds: float) -> dict[str, Any]:
    """Prices rounds, each with contexts that no round had before, until the time is up.

    Making the rows of the space is part of what is timed; reading the catalogue is not.
    """
    from partita.planner.passes import Pricing, passes
    from partita.planner.space import Space, axis_roles, cluster_topology, rows
    from partita.specs.cluster import parse_cluster
    from partita.specs.formats import Formats
    from partita.specs.resolve import resolve_model

    model, cluster, formats = resolve_model(MODEL), parse_cluster(CLUSTER), Formats()
    topology = cluster_topology(cluster)

    def one_round(contexts: tuple[int, ...]) -> tuple[int, dict[str, Any]]:
        """Legal configurations of a round, and the fastest decode step among them."""
        count, best = 0, {"step_ms": np.inf}
        for phase in ("decode", "prefill"):
            roles = axis_roles(model, topology, phase)
            space = Space(model, topology, phase, roles, rows(topology, len(roles), MOST_AXES))
            pricing = Pricing(cluster.chip, formats, 1 if phase == "decode" else NEW_TOKENS)
            for each in passes(space, pricing, BATCHES, np.array(contexts, dtype=float)):
                count += int(each.legal.sum()) * len(contexts)
                shape = (*each.legal.shape, len(contexts))
                parts = {name: np.broadcast_to(getattr(each.time, name), shape) for name in SECONDS}
                parts |= {name: np.broadcast_to(getattr(each.step, name), shape) for name in BYTES}
                took = np.where(each.legal[:, :, None], each.time.step_seconds, np.inf)
                at = np.unravel_index(np.argmin(took), shape)
                if phase == "decode" and took[at] * 1e3 < best["step_ms"]:
                    best = {"step_ms": took[at] * 1e3} | {name: part[at] for name, part in parts.items()}
        return count, {name: float(value) for name, value in best.items()}

    begun = time.perf_counter()
    _, first = one_round(CONTEXTS)
    loading = time.perf_counter() - begun
    shifts = itertools.count(1)
    found = timed(lambda: one_round(_shifted(CONTEXTS, next(shifts)))[0], seconds)
    single = timed(lambda: one_round(_shifted(CONTEXTS[-1:], next(shifts)))[0], seconds)
    return found | {
        "first_call_seconds": loading,
        "first_answer": first,
        "one_context_a_round": single,
    }


def _shifted(contexts: tuple[int, ...], shift: int) -> tuple[int, ...]:
    return tuple(context + shift for context in contexts)


if __name__ == "__main__":
    report(partita_rate(read_job().seconds))
