"""Partita: how many configurations one core prices a second, in the passes that its search is made of.

A configuration is one layout, mesh, batch and context for one phase, whole Transformer, with seconds and
bytes by part. Only legal ones are counted, though illegal cells of a pass take their time too.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from peers.rate import CONTEXTS, read_job, report, timed

MODEL, CLUSTER = "llama3-70b", "h100:2x8"
MOST_AXES = 4  # all that 16 chips can have, so every layout of the space is priced
BATCHES = tuple(2**n for n in range(12))
SECONDS = ("compute_seconds", "weight_seconds", "kv_seconds", "communication_seconds")
BYTES = ("weight_bytes", "kv_bytes", "activation_bytes")


def partita_rate(seconds: float) -> dict[str, Any]:
    """Prices every layout of both phases at every batch, a new context each round, until the time is up.

    Making the rows of the space is part of what is timed; reading the catalogue is not.
    """
    from partita.planner.space import classes, cluster_ground, rows
    from partita.planner.table import passes
    from partita.specs.cluster import parse_cluster
    from partita.specs.formats import Formats
    from partita.specs.resolve import resolve_model

    model, cluster, formats = resolve_model(MODEL), parse_cluster(CLUSTER), Formats()
    ground = cluster_ground(cluster)

    def one_round(context: int) -> tuple[int, dict[str, Any]]:
        """Legal configurations of a round, and the fastest decode step among them."""
        count, best = 0, {"step_ms": np.inf}
        for phase in ("decode", "prefill"):
            kinds = classes(model, ground, phase)
            counts = rows(ground, len(kinds), MOST_AXES)
            queries, seen = (1, context) if phase == "decode" else (context, None)
            space = (phase, kinds, counts, BATCHES)
            for chosen, step, bound, legal in passes(
                model, cluster.chip, ground, formats, *space, queries=queries, context=seen
            ):
                count += int(legal.sum())
                shape = (len(chosen), len(BATCHES))
                parts = {name: np.broadcast_to(getattr(bound, name), shape) for name in SECONDS}
                parts |= {name: np.broadcast_to(getattr(step, name), shape) for name in BYTES}
                took = np.where(legal, bound.step_seconds, np.inf)
                at = np.unravel_index(np.argmin(took), shape)
                if phase == "decode" and took[at] * 1e3 < best["step_ms"]:
                    best = {"step_ms": took[at] * 1e3} | {name: part[at] for name, part in parts.items()}
        return count, {name: float(value) for name, value in best.items()}

    begun = time.perf_counter()
    _, first = one_round(CONTEXTS[0])
    loading = time.perf_counter() - begun
    more = (context + shift for shift in itertools.count() for context in CONTEXTS[1:])
    found = timed(lambda: one_round(next(more))[0], seconds)
    return found | {"first_call_seconds": loading, "first_answer": first}


if __name__ == "__main__":
    report(partita_rate(read_job().seconds))
