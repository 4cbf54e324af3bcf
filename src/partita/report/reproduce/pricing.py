"""The paper's settings, priced: PaLM and MT-NLG on TPU v4 in the layouts it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from partita.cost.prediction import Prediction, Setting, predict
from partita.cost.roofline import chip_seconds_per_token, mfu
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Format, Formats, Model, Workload, catalogue_model, parse_cluster
from partita.specs.profile import Phase

CONTEXT = 2048
"""Tokens of the paper's context: a prefill reads all of them, the decode writes the last 64."""

OUTPUT = 64
PROMPTS: dict[Phase, int] = {"prefill": CONTEXT, "decode": CONTEXT - OUTPUT}
"""Tokens that a phase finds as its prompt."""

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
    def tokens(self) -> int:
        """Tokens of all sequences that the phase processes."""
        return self.batch * self.tokens_each

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def seconds(self) -> float:
        """The bound of the whole phase."""
        return self.prediction.total_seconds

    @property
    def seconds_per_token(self) -> float:
        """What one sequence waits for a token, in decode."""
        return self.seconds / self.tokens_each

    @property
    def chip_seconds_per_token(self) -> float:
        return float(chip_seconds_per_token(self.tokens, self.chips, self.seconds))

    @property
    def mfu(self) -> float:
        setting = self.prediction.setting
        return float(
            mfu(setting.model.parameters, self.tokens, self.chips, setting.peaks.flops, self.seconds)
        )

    def row(self) -> dict[str, Any]:
        """What tables show of it, by the columns' keys."""
        setting = self.prediction.setting
        return {
            "phase": self.prediction.phase,
            "model": setting.model.name,
            "weights": setting.formats.weights,
            "chips": self.chips,
            "batch": self.batch,
            "tokens": self.tokens,
            "context": setting.workload.context,
            "layout": str(self.prediction.layout.roles),
            "bound_seconds": self.seconds,
            "bound_seconds_per_token": self.seconds_per_token,
            "bound_chip_seconds_per_token": self.chip_seconds_per_token,
            "bound_mfu": self.mfu,
            "binds": self.prediction.bound.binds,
            "fits": self.fits,
        }


def on_torus(
    model: str | Model,
    chips: int,
    *,
    batch: int,
    weights: Format = "bf16",
    prompt: int = PROMPTS["decode"],
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
    return min((r for r in runs if r.fits), key=lambda r: r.seconds, default=None)
