"""Fits the published profiles of the catalogue again, from the measurements that lie beside them.

`python -m partita.measure.refit tpu-v4` prints the profile as the catalogue has it. Knows the form of
`NAME.measured.toml`; profiles fitted to something else than runs of one request have a fit of their own
(`served_points.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.cost.phase_estimate import asked_of, estimated_seconds
from partita.cost.prediction import Prediction, Setting, predict
from partita.measure.fit import Measurement, fit, leave_out, unfitted, with_apart, with_held_out
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, Profile, Workload, catalogue_model, parse_cluster
from partita.specs.catalogue import measured
from partita.specs.catalogue import profile as catalogue_profile
from partita.specs.toml import profile_toml

STARTS = {
    "tpu-v4": {
        "matmul_share": 0.7,
        "half_rows": 20.0,
        "torus/share": 0.5,
        "torus/message_seconds": 5e-6,
    },
    "a100": {
        "matmul_share": 0.6,
        "layer_seconds": 5e-5,
        "network/share": 0.5,
        "network/message_seconds": 1e-5,
    },
    "tpu-v5e": {"memory_share": 0.8},
}
"""Constants fitted in each profile, and where the fit starts: round guesses."""


@dataclass(frozen=True)
class MeasuredRun:
    """One published time: of one phase, or of a whole request (prefill and decode)."""

    name: str
    group: str
    batch: int
    seconds: float
    predictions: tuple[Prediction, ...]

    @cached_property
    def bound_seconds(self) -> float:
        return sum(each.total_seconds for each in self.predictions)

    def estimated_seconds(self, profile: Profile) -> float:
        return sum(estimated_seconds(each.run, profile) for each in self.predictions)

    @property
    def point(self) -> Measurement:
        """Left out of a fit with all of its table or column."""
        asked = tuple(asked_of(each.run) for each in self.predictions)
        return Measurement(self.name, (self.group,), self.seconds, self.estimated_seconds, asked)


def measured_runs(name: str, which: str = "runs") -> tuple[MeasuredRun, ...]:
    """What the profile `name` was fitted to, priced; or, "unseen", what was kept apart from it."""
    return tuple(
        _run(run, dict(zip(run["columns"], row, strict=True)))
        for run in measured(name).get(which, ())
        for row in run["rows"]
    )


def _run(run: Mapping[str, Any], row: Mapping[str, Any]) -> MeasuredRun:
    mesh = parse_mesh(run["mesh"])
    setting = Setting(
        model=catalogue_model(run["model"]),
        cluster=parse_cluster(run["cluster"]),
        mesh=mesh,
        # 2 bytes on the wire, as published
        formats=Formats(weights=run.get("weights", "bf16"), kv=run.get("kv", "bf16"), reduce="bf16"),
        workload=Workload(prompt=run["prompt"], output=run["output"], batch=row["batch"]),
        stages=run.get("stages", 1),
    )
    roles = parse_layout(run["layout"], mesh.axes)
    phases = ("prefill", "decode") if row["phase"] == "request" else (row["phase"],)
    return MeasuredRun(
        name=f"{run['model']} {run['layout']} {row['phase']}, batch {row['batch']}",
        group=run["group"],
        batch=row["batch"],
        seconds=row["seconds"],
        predictions=tuple(predict(setting, phase, roles) for phase in phases),
    )


def refit(name: str) -> Profile:
    """The profile `name` fitted anew: constants, the region of its points and its held-out errors.

    What is fixed, and the words, are taken from the catalogue. Where measurements were kept apart, the errors
    are theirs.
    """
    runs, known, starts = measured_runs(name), catalogue_profile(name), STARTS[name]
    points = [run.point for run in runs]
    template = unfitted(known, points)
    profile, unseen = fit(points, template, starts).profile, measured_runs(name, "unseen")
    if unseen:
        return with_apart(profile, [run.point for run in unseen])
    return with_held_out(profile, leave_out(points, template, starts))


if __name__ == "__main__":
    for asked_name in sys.argv[1:]:
        print(profile_toml(refit(asked_name), named=False))
