"""What each low-level optimisation of the paper's section 3.5 is worth on this machine: on against off.

    python bench/overlap.py [--devices 8] [--seconds 8] [--json FILE]

A prefill and a decode step of one model with a parallel block and multi-query heads, made-up weights, under
layouts that split the work in one and in two dimensions. All variants are compiled first and then timed turn
by turn, so that a busy machine slows them alike; a variant's figure is the median of its ratio to the plain
step of the same turn, with the quartiles. Devices that are threads of one processor can hide nothing behind
each other: what is seen there is the price of the loops, and a chip with links of its own has to say what
they gain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from conditions import conditions
from rich.console import Console
from rich.table import Table

from partita.engine.devices import devices_for
from partita.engine.engine import EngineOptions
from partita.measure.launches import Steps
from partita.planner.layouts_to_time import mesh_of
from partita.program.options import RunOptions, overlap_of
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, Model

MODEL = Model(
    name="mqa-parallel",
    layers=4,
    d_model=512,
    d_ff=2048,
    heads=8,
    kv_heads=1,
    head_dim=64,
    vocabulary=8192,
    block="parallel",
)
LAYOUTS = ("ws1d/batch", "ws2d/batch")
STEPS = (("prefill", 8, 128), ("decode", 8, 512))
"""Phase, sequences, and tokens of each prompt or of the cache."""
VARIANTS = {
    "looped, one way": RunOptions(overlap_of("one-way")),
    "looped, both ways": RunOptions(overlap_of("two-way")),
    "only gathers looped": RunOptions(overlap_of("gather=one-way")),
    "only scatters looped": RunOptions(overlap_of("scatter=one-way")),
    "halves of the block reduced apart": RunOptions(shared_reduction=False),
    "hidden units summed, not scattered": RunOptions(scatter_hidden=False),
    "softmax in base 2": RunOptions(base2_softmax=True),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", type=int, default=8, help="CPU devices, where there is no accelerator")
    options.add_argument("--seconds", type=float, default=8.0, help="for timing each step and layout")
    options.add_argument("--json", type=Path, help="where all figures go")
    asked = options.parse_args()
    devices = devices_for(asked.devices, asked.devices)
    dtype = "f32" if jax.default_backend() == "cpu" else "bf16"
    # two axes are enough to split in two dimensions
    mesh = mesh_of((2, asked.devices // 2)) if asked.devices > 2 else Mesh("x", (asked.devices,))
    console, found = Console(width=120), []
    for phase, batch, tokens in STEPS:
        for text in LAYOUTS:
            roles = parse_layout(text, mesh.axes)
            storage = plan_storage(MODEL, mesh, roles, roles)

            def ready(run_options: RunOptions, roles=roles, storage=storage, of=(phase, batch, tokens)):
                options = EngineOptions(devices, run_options)
                steps = Steps(MODEL, mesh, storage, Formats.all_in(dtype), options)
                return steps.ready(roles, *of)

            table = Table("variant", "ms", "of the plain step", "quartiles")
            table.title = f"{phase}, {batch} x {tokens} tokens, {text} on {mesh}"
            times = by_turns(
                {name: ready(s) for name, s in {"plain": RunOptions(), **VARIANTS}.items()}, asked
            )
            for name, seconds in times.items():
                ratios = [mine / plain for mine, plain in zip(seconds, times["plain"], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                milliseconds = statistics.median(seconds) * 1e3
                shown = (f"{milliseconds:.2f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
                table.add_row(name, *shown)
                row = {"phase": phase, "batch": batch, "tokens": tokens, "layout": text, "variant": name}
                row |= {"milliseconds": milliseconds, "ratio": middle, "low": low, "high": high}
                found.append({**row, "turns": len(ratios)})
            console.print(table)
    if asked.json is not None:
        figures = {"conditions": conditions(None), "mesh": str(mesh), "steps": found}
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


def by_turns(steps: dict[str, Callable[[], Any]], asked: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every step, each in every turn, the order reversed from turn to turn."""
    for step in steps.values():
        jax.block_until_ready(step())
    times: dict[str, list[float]] = {name: [] for name in steps}
    end, turn = time.perf_counter() + asked.seconds, 0
    while turn < 5 or time.perf_counter() < end:
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            jax.block_until_ready(steps[name]())
            times[name].append(time.perf_counter() - start)
        turn += 1
    return times


if __name__ == "__main__":
    sys.exit(main())
