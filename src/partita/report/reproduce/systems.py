"""The systems of the paper's comparison with FasterTransformer (section 5, appendix D), priced end to end.

Ours: 64 TPU v4, weights in two dimensions, attention over heads. FasterTransformer: MT-NLG 530B on A100-80GB,
eight a node, split 16 or 32 ways in one dimension, or 8 ways in each of 3 pipeline stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from partita.cost.prediction import Prediction, Setting, predict
from partita.cost.roofline import mfu
from partita.report.reproduce.pricing import TORI
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


@dataclass(frozen=True)
class System:
    """A model on chips, split in one way in both phases."""

    key: str
    label: str
    model: str
    cluster: str
    mesh: str
    layout: str
    stages: int
    batches: tuple[int, ...]


_TORUS = "tpu-v4:" + "x".join(map(str, TORI[64]))
_OURS = tuple(2**i for i in range(2, 11))
_THEIRS = tuple(2**i for i in range(9))
SYSTEMS = (
    System("ours-palm", "PaLM 540B, 64 TPU v4", "palm-540b", _TORUS, "x=4,y=4,z=4", "ws2d/heads", 1, _OURS),
    System("ours", "MT-NLG 530B, 64 TPU v4", "mt-nlg-530b", _TORUS, "x=4,y=4,z=4", "ws2d/heads", 1, _OURS),
    System(
        "tp16",
        "MT-NLG 530B, 16 A100 TP16",
        "mt-nlg-530b",
        "a100-80g:2x8",
        "x=2,y=8",
        "ws1d/heads",
        1,
        _THEIRS,
    ),
    System(
        "tp32",
        "MT-NLG 530B, 32 A100 TP32",
        "mt-nlg-530b",
        "a100-80g:4x8",
        "x=4,y=8",
        "ws1d/heads",
        1,
        _THEIRS,
    ),
    System(
        "pp3_tp8",
        "MT-NLG 530B, 24 A100 PP3/TP8",
        "mt-nlg-530b",
        "a100-80g:3x8",
        "x=8",
        "ws1d/heads",
        3,
        _THEIRS,
    ),
)


@dataclass(frozen=True)
class Request:
    """A batch read and answered; bounds of both phases."""

    prefill: Prediction
    decode: Prediction

    @property
    def batch(self) -> int:
        return self.decode.batch

    @property
    def chips(self) -> int:
        return self.decode.setting.cluster.chips

    @property
    def seconds(self) -> float:
        return self.prefill.total_seconds + self.decode.total_seconds

    @property
    def fits(self) -> bool:
        return self.prefill.fits and self.decode.fits

    @property
    def mfu(self) -> float:
        """Over input and output tokens, as the paper counts it."""
        setting = self.decode.setting
        workload = setting.workload
        tokens = self.batch * (workload.prompt + workload.output)
        return float(mfu(setting.model.parameters, tokens, self.chips, setting.peaks.flops, self.seconds))


@cache
def requests(system: System, prompt: int, output: int) -> tuple[Request, ...]:
    """Every batch of the system's, `prompt` tokens in and `output` out; the formats are 16 bits."""
    mesh, cluster = parse_mesh(system.mesh), parse_cluster(system.cluster)
    model, formats = catalogue_model(system.model), Formats(reduce="bf16")
    roles, found = parse_layout(system.layout, mesh.axes), []
    for batch in system.batches:
        workload = Workload(prompt=prompt, output=output, batch=batch)
        setting = Setting(model, cluster, mesh, formats, workload, system.stages)
        found.append(Request(predict(setting, "prefill", roles), predict(setting, "decode", roles)))
    return tuple(found)
