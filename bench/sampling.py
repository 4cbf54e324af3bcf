"""What it is worth to compare candidates only: draws of tokens, against a sort of the whole vocabulary.

    python bench/sampling.py [--devices 8] [--vocabulary 49152] [--rows 8] [--json FILE]

Draws of each kind from made-up logits, split over the devices, each compiled first and then timed turn by
turn, so that a busy machine slows all alike. Both ways give the same tokens, which is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from conditions import conditions
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

from partita.engine.devices import devices_for
from partita.engine.local import Local
from partita.engine.ops import JaxOps
from partita.engine.requests import Sample, arrays
from partita.program.sampling import CANDIDATES, Drawing, Kind, sample
from partita.sharding.spec import parse
from partita.specs import Formats, Model
from partita.specs.sampling import Sampling

F32 = Formats(weights="f32", activations="f32", kv="f32")
REQUESTS: dict[Kind, Sampling] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1, top_k=50, top_p=0.9, min_p=0.01),
    "wide": Sampling(temperature=1, top_p=0.95),
}
TURNS = 15


def draw(devices: int, logits: np.ndarray, kind: Kind, candidates: int) -> Any:
    """A compiled draw and its arguments."""
    rows, vocabulary = logits.shape
    model = Model(
        name="none", layers=1, d_model=8, d_ff=8, heads=1, kv_heads=1, head_dim=8, vocabulary=vocabulary
    )
    mesh = jax.sharding.Mesh(np.array(devices_for(devices)), ("x",), (AxisType.Explicit,))
    split, whole = PartitionSpec(None, None, "x"), PartitionSpec()

    def step(logits, settings, positions):
        ops = JaxOps({"x": devices}, F32, model, True)
        given = {n: Local(v, parse("B M" if v.ndim > 1 else "B")) for n, v in settings.items()}
        at = Local(positions, parse("B"))
        found = sample(
            ops, Local(logits, parse("B L V_x")), vocabulary, kind, Drawing(given, at, {}), candidates
        )
        return found.tokens.value

    run = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(split, whole, whole), out_specs=whole, check_vma=False)
    )
    given = arrays([Sample(REQUESTS[kind], row) for row in range(rows)])
    at = jax.device_put(logits[:, None], NamedSharding(mesh, split))
    args = (at, given, np.arange(rows, dtype=np.int32))
    return run.lower(*args).compile(), args


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--devices", type=int, default=8)
    options.add_argument("--vocabulary", type=int, default=49152)
    options.add_argument("--rows", type=int, default=8)
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    devices_for(asked.devices)
    logits = np.random.default_rng(0).normal(0, 3, (asked.rows, asked.vocabulary)).astype(np.float32)
    cases = [("greedy", 0), ("sampled", CANDIDATES), ("wide", CANDIDATES), ("sampled", asked.vocabulary)]
    runs = [draw(asked.devices, logits, kind, candidates) for kind, candidates in cases]
    tokens = [np.asarray(run(*args)).tolist() for run, args in runs]
    assert tokens[1] == tokens[3]
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(TURNS):
        for (run, args), kept in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(*args))
            kept.append(time.perf_counter() - start)
    found = [
        {"kind": kind, "candidates": candidates, "milliseconds": statistics.median(kept) * 1e3}
        for (kind, candidates), kept in zip(cases, seconds, strict=True)
    ]
    table = Table("draw", "candidates of a shard", "ms", title=f"{asked.rows} rows, {asked.devices} devices")
    for row in found:
        table.add_row(row["kind"], str(row["candidates"] or "the best"), f"{row['milliseconds']:.2f}")
    Console().print(table)
    if asked.json:
        asked.json.write_text(json.dumps({"conditions": conditions(None), "draws": found}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
