"""Published points of served models on one node of GPUs: what `h100` was fitted to, priced and fitted again.

`python -m partita.measure.served_points` prints the profile as the catalogue has it. A point is a model under
a steady load (`cost.served`), its measured figure the seconds between two tokens of a request. Engines reduce
with one all-reduce where the program has a reduce-scatter, the norm's moments and an all-gather; so a message
here is a third of theirs. Rows of 8-bit floats are priced as "int8", which has the same bytes and the same
peak, their cache too: its format is not stated, but with 16 bits several rows would not fit their memory, and
some would be faster than their bound.
Knows nothing about other measurements (`refit.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.cost.interval import Asked
from partita.cost.number import array
from partita.cost.served import Load, Served
from partita.cost.setting import Setting
from partita.measure.fit import Measurement, fit, leave_out, unfitted, with_held_out
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_roles
from partita.specs import Formats, Profile, Workload, catalogue_model, parse_cluster
from partita.specs.catalogue import measured_rows
from partita.specs.catalogue import profile as catalogue_profile
from partita.specs.toml import profile_toml

NAME = "h100"
SCALE = 0.1
"""Relative error from which on points count less: engines, versions and clients differ by as much."""
STARTS = {
    "matmul_share": 0.8,
    "int8_matmul_share": 0.5,
    "memory_share": 0.8,
    "sequence_seconds": 5e-7,
    "switch/message_seconds": 5e-6,
    "switch/hop_seconds": 5e-7,
}
LAYOUT = ("ws1d", "heads")


@dataclass(frozen=True)
class ServedRow:
    """One published point; lengths in tokens."""

    model: str
    chip: str
    engine: str
    weights: str
    prompt: int
    output: int
    concurrency: int
    chips: int
    seconds: float
    """Between two tokens of a request."""
    ttft: float = 0.0
    """To the first token of a request, waiting included; nothing is fitted to it here."""

    @property
    def name(self) -> str:
        return (
            f"{self.model} {self.weights} on {self.chips} {self.chip}, {self.engine}, {self.concurrency} "
            f"clients, {self.prompt} in, {self.output} out"
        )


@dataclass(frozen=True)
class Block:
    """Rows of one model, engine, format and number of chips, priced in one pass."""

    rows: tuple[ServedRow, ...]
    served: Served
    _kept: list[tuple[Profile, np.ndarray]] = field(default_factory=list, compare=False, repr=False)

    @property
    def measured(self) -> np.ndarray:
        return np.array([row.seconds for row in self.rows])

    def estimated(self, profile: Profile) -> np.ndarray:
        """Seconds of every row; those of the last profile asked for are kept."""
        if not self._kept or self._kept[0][0] is not profile:
            self._kept[:] = [(profile, np.asarray(self.served.estimated_seconds(profile), float))]
        return self._kept[0][1]

    @property
    def points(self) -> tuple[Measurement, ...]:
        """Left out of a fit with all of their model, of their engine, and of their number of chips."""
        first = self.rows[0]
        chips = "1 chip" if first.chips == 1 else f"{first.chips} chips"
        groups = (first.model, first.engine, chips)
        return tuple(
            Measurement(
                row.name,
                groups,
                row.seconds,
                lambda profile, i=i: float(self.estimated(profile)[i]),
                (self.asked(i),),
            )
            for i, row in enumerate(self.rows)
        )

    def asked(self, i: int) -> Asked:
        """The decode step of row `i`, of the sequences that are in memory, as a profile's region counts it.

        Not the prefill: no time of one was fitted to, but its share of the time between two tokens.
        """
        row, setting = self.rows[i], self.served.setting
        return Asked(
            parameters=setting.model.parameters,
            chips=row.chips,
            tokens=float(array(self.served.sequences)[i]),
            context=row.prompt + row.output // 2,
            phase="decode",
            layout="/".join(LAYOUT),
            weights=setting.formats.weights,
            activations=setting.formats.activations,
            chip=setting.cluster.chip.name,
        )


def read_rows(lines: Sequence[dict[str, str]]) -> tuple[ServedRow, ...]:
    """Rows of a CSV with the columns of `h100.measured.csv`."""
    return tuple(
        ServedRow(
            model=line["model"],
            chip=line["chip"],
            engine=line["engine"],
            weights=line["weights"],
            prompt=int(line["prompt_tokens"]),
            output=int(line["output_tokens"]),
            concurrency=int(line["concurrency"]),
            chips=int(line["tensor_parallel"]),
            seconds=float(line["tpot_ms"]) / 1e3,
            ttft=float(line["ttft_ms"]) / 1e3,
        )
        for line in lines
    )


def blocks(rows: Sequence[ServedRow]) -> tuple[Block, ...]:
    """Priced; in the order of their first rows."""
    alike: dict[tuple, list[ServedRow]] = defaultdict(list)
    for row in rows:
        alike[row.model, row.chip, row.engine, row.weights, row.chips].append(row)
    return tuple(Block(tuple(group), _served(group)) for group in alike.values())


def _served(rows: Sequence[ServedRow]) -> Served:
    first, narrow = rows[0], rows[0].weights == "fp8"
    mesh = parse_mesh(f"x={first.chips}")
    setting = Setting(
        model=catalogue_model(first.model),
        cluster=parse_cluster(f"{first.chip}:1x{first.chips}"),
        mesh=mesh,
        formats=Formats(weights="int8", kv="int8", reduce="bf16") if narrow else Formats(reduce="bf16"),
        workload=Workload(prompt=1, output=1, batch=1),
    )
    load = Load(*(np.array(column, float) for column in zip(*map(_load, rows), strict=True)))
    return Served(setting, parse_roles(*LAYOUT, mesh.axes), load, multiply="int8" if narrow else None)


def _load(row: ServedRow) -> tuple[int, int, int]:
    return row.prompt, row.output, row.concurrency


def published() -> tuple[Block, ...]:
    """The points beside the profile."""
    return blocks(read_rows(measured_rows(NAME)))


def refit() -> Profile:
    """The profile fitted anew: constants, region and held-out errors; what is fixed is the catalogue's."""
    found, known = published(), catalogue_profile(NAME)
    points = [point for block in found for point in block.points]
    template = unfitted(known, points)
    profile = fit(points, template, STARTS, SCALE).profile
    return with_held_out(profile, leave_out(points, template, STARTS, SCALE))


if __name__ == "__main__":
    print(profile_toml(refit(), named=False))
