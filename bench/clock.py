"""How far estimates are from the clock on this machine: calibrates twice, then times three models.

    python bench/clock.py [--devices 8] [--layouts 10] [--seconds 60] [--json FILE]

SmolLM2-135M, and two models with made-up weights: multi-query heads and a parallel block, grouped-query heads
and a serial block. Prints what `partita verify --clock` prints for each, and how far apart two calibrations'
estimates are. Takes about ten minutes; other work on the machine disturbs it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import jax
from rich.console import Console

from partita.cli.verify_clock import as_json, summary, table
from partita.cost.setting import Setting
from partita.engine.devices import devices_for
from partita.measure.calibrate.run import calibrate
from partita.measure.clock import clock
from partita.planner.layouts_to_time import layouts_to_time, mesh_of
from partita.specs import Formats, Model, Workload, catalogue_model

MODELS = (
    catalogue_model("smollm2-135m"),
    Model(
        name="mqa-parallel",
        layers=8,
        d_model=512,
        d_ff=2048,
        heads=8,
        kv_heads=1,
        head_dim=64,
        vocabulary=8192,
        block="parallel",
    ),
    Model(
        name="gqa-serial",
        layers=6,
        d_model=768,
        d_ff=2048,
        heads=16,
        kv_heads=4,
        head_dim=64,
        vocabulary=16_384,
        block="serial",
    ),
)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", type=int, default=8, help="CPU devices, where there is no accelerator")
    options.add_argument("--layouts", type=int, default=10, help="of each phase of each model")
    options.add_argument("--seconds", type=float, default=60.0, help="for the clock, of each part")
    options.add_argument("--json", type=Path, help="where all figures go")
    asked = options.parse_args()
    devices, console = devices_for(asked.devices, asked.devices), Console(highlight=False, width=140)
    clusters = []
    for turn in ("first", "second"):
        start = time.perf_counter()
        clusters.append(calibrate(devices, turn, asked.seconds).cluster)
        console.print(f"{turn} calibration: {time.perf_counter() - start:.0f} s")
    shape = mesh_of(clusters[0].shape)
    dtype = "f32" if jax.default_backend() == "cpu" else "bf16"
    formats = Formats.all_in(dtype)
    found, apart = [], []
    for model in MODELS:
        workload = Workload(prompt=16, output=1, batch=8, context=32)
        settings = [Setting(model, cluster, shape, formats, workload) for cluster in clusters]
        wanted = [
            p for phase in ("prefill", "decode") for p in layouts_to_time(settings[0], phase, asked.layouts)
        ]
        again = [each.priced_in(settings[1]) for each in wanted]
        apart += [
            abs(b.estimate.step_seconds / a.estimate.step_seconds - 1)
            for a, b in zip(wanted, again, strict=True)
            if a.estimate and b.estimate
        ]
        phases = clock(wanted, devices, asked.seconds)
        console.print(f"\n{model.name}")
        for phase in phases:
            console.print(table(phase), *summary(phase), sep="\n")
        found.append(as_json(settings[0], phases))
    console.print(
        f"\nestimates by the second calibration: {statistics.median(apart):.1%} apart from those by the "
        f"first in the median of {len(apart)}, {max(apart):.1%} at most"
    )
    if asked.json is not None:
        asked.json.write_text(json.dumps({"clocks": found, "calibrations_apart": apart}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
