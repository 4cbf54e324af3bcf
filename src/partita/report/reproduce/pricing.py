"""The paper's settings, priced: PaLM and MT-NLG on TPU v4 in the layouts it names, and frontiers of points.

Knows the cost model; nothing about published figures or how anything is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from partita.cost.prediction import Phase, Prediction, Setting, predict
from partita.cost.roofline import chip_seconds_per_token, mfu
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Format, Formats, Model, Workload, catalogue_model, parse_cluster

CONTEXT = 2048
"""Tokens of the paper's context: a prefill reads all of them, the decode writes the last 64."""

OUTPUT = 64
TORI = {
    4: (2, 1, 2),
    8: (2, 2, 2),
    16: (2, 4, 2),
    32: (4, 2, 4),
    64: (4, 4, 4),
    128: (8, 4, 4),
    256: (4, 8, 8),
}
"""Chips -> X, Y, Z as in the authors' published code."""

BATCHES = tuple(2**i for i in range(11))


@dataclass(frozen=True)
class Run:
    """One phase of one batch, predicted. Rates are of the whole phase."""

    prediction: Prediction

    @property
    def chips(self) -> int:
        return self.prediction.setting.cluster.chips

    @property
    def batch(self) -> int:
        return self.prediction.batch

    @property
    def tokens_each(self) -> int:
        """Tokens of a sequence that the phase processes."""
        workload = self.prediction.setting.workload
        return workload.output if self.prediction.phase == "decode" else workload.prompt

    @property
    def seconds(self) -> float:
        """Bound of the whole phase."""
        return self.prediction.total_seconds

    @property
    def seconds_per_token(self) -> float:
        """Of decode: what one sequence waits for a token."""
        return self.seconds / self.tokens_each

    @property
    def chip_seconds_per_token(self) -> float:
        return float(chip_seconds_per_token(self.batch * self.tokens_each, self.chips, self.seconds))

    @property
    def mfu(self) -> float:
        setting = self.prediction.setting
        tokens = self.batch * self.tokens_each
        return float(mfu(setting.model.parameters, tokens, self.chips, setting.peaks.flops, self.seconds))


def on_torus(
    model: str | Model,
    chips: int,
    *,
    batch: int,
    weights: Format = "bf16",
    prompt: int = CONTEXT - OUTPUT,
    output: int = OUTPUT,
) -> Setting:
    """`chips` TPU v4 in the authors' mesh; partial sums travel as bf16, as the paper counts them."""
    shape = TORI[chips]
    return Setting(
        model=catalogue_model(model) if isinstance(model, str) else model,
        cluster=parse_cluster(f"tpu-v4:{'x'.join(map(str, shape))}"),
        mesh=Mesh.of(shape),
        formats=Formats(weights=weights, reduce="bf16"),
        workload=Workload(prompt=prompt, output=output, batch=batch),
    )


def run(setting: Setting, phase: Phase, layout: str) -> Run:
    """One phase in a layout such as "ws2d/batch"."""
    return Run(predict(setting, phase, parse_layout(layout, setting.mesh.axes)))


def fastest(setting: Setting, phase: Phase, layouts: Iterable[str]) -> Run | None:
    """The run of the layouts that takes least time, of those that fit; None where none does."""
    runs = (run(setting, phase, layout) for layout in layouts)
    return min((r for r in runs if r.prediction.fits), key=lambda r: r.seconds, default=None)


def frontier(runs: Iterable[Run], cost: Callable[[Run], float], latency: Callable[[Run], float]) -> list[Run]:
    """The runs that no other beats in one of the two without losing in the other, by latency."""
    found: list[Run] = []
    for r in sorted(runs, key=lambda r: (latency(r), cost(r))):
        if not found or cost(r) < cost(found[-1]):
            found.append(r)
    return found
