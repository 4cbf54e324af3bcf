"""How long steps of a small Transformer take: what no matmul and no collective alone shows.

Two models that nobody uses, one of few wide layers and one of many narrow ones, under a few layouts that
differ as much as they can, at several sizes of batch and prompt: from these come the time of a layer and of
a step, and how efficient operations are in the middle of a program, where they find nothing in the caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.cost.prediction import Prediction, predict
from partita.cost.setting import Setting
from partita.engine.engine import EngineOptions
from partita.measure.calibrate.machine import Machine
from partita.measure.launches import Steps
from partita.measure.stopwatch import Run
from partita.planner.layouts_to_time import mesh_of
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles, parse_layout
from partita.specs.cluster import Cluster
from partita.specs.formats import Float, Formats
from partita.specs.model import Model
from partita.specs.profile import Phase
from partita.specs.workload import Workload

_WIDE = Model(
    name="wide",
    layers=3,
    d_model=640,
    d_ff=2560,
    heads=8,
    kv_heads=2,
    head_dim=80,
    vocabulary=12_288,
    block="serial",
    feed_forward="gelu",
)
_NARROW = Model(
    name="narrow",
    layers=8,
    d_model=320,
    d_ff=1280,
    heads=8,
    kv_heads=8,
    head_dim=40,
    vocabulary=4096,
    block="serial",
    feed_forward="swiglu",
)
_TIMES_AS_WIDE = 8
"""How much wider the models are for an accelerator, which would not notice the small ones."""

_Sizes = tuple[tuple[Phase, int, int], ...]
_SMALL: tuple[_Sizes, _Sizes] = (
    (("prefill", 8, 16), ("decode", 8, 64)),
    (("prefill", 8, 64), ("decode", 32, 128)),
)
_LARGE: tuple[_Sizes, _Sizes] = (
    (("prefill", 1, 512), ("decode", 8, 512)),
    (("prefill", 4, 1024), ("decode", 128, 2048)),
)
"""Phases with batch and tokens; all that is held at once fits an accelerator of 16 GB."""

_LAYOUTS = ("ws1d/heads", "ws2d/batch", "wg-x/batch", "wg-xyz/batch", "replica/batch")


@dataclass(frozen=True)
class Layered:
    """A step of a model in a layout: prompts of `tokens`, or one token each on a cache of so many."""

    model: Model
    mesh: Mesh
    roles: Roles
    formats: Formats
    phase: Phase
    batch: int
    tokens: int

    def __str__(self) -> str:
        size = f"{self.batch} x {self.tokens}"
        return f"{self.phase} of {self.model.layers} layers, {self.roles}, {size}"

    def predicted(self, cluster: Cluster) -> Prediction:
        """The step priced on a cluster of the same chips."""
        prompt = self.tokens if self.phase == "prefill" else self.tokens - 1
        workload = Workload(prompt=prompt, output=1, batch=self.batch, context=prompt + 1)
        setting = Setting(self.model, cluster, self.mesh, self.formats, workload)
        return predict(setting, self.phase, self.roles)


def settings(machine: Machine) -> Iterator[Layered]:
    """The steps to time, on the mesh of the machine's axes."""
    mesh, formats = mesh_of(machine.shape), Formats.all_in(dtype(machine))
    models = (_WIDE, _NARROW) if machine.shared else tuple(_widened(model) for model in (_WIDE, _NARROW))
    small, large = _SMALL if machine.shared else _LARGE
    for model, sizes, others in zip(models, (small, large), (large, small), strict=True):
        for text in _LAYOUTS if mesh.chips > 1 else _LAYOUTS[:1]:
            weights, _, attention = text.partition("/")
            if weights == "replica":
                weights = ",".join(f"{axis}=replica" for axis in mesh.axes)
            roles = parse_layout(f"{weights}/{attention}", mesh.axes)
            for size in (*sizes, *others) if text == _LAYOUTS[0] else sizes:
                yield Layered(model, mesh, roles, formats, *size)


def _widened(model: Model) -> Model:
    """The heads of the cache are as many, for its memory's sake."""
    wider = {name: getattr(model, name) * _TIMES_AS_WIDE for name in ("d_model", "d_ff", "heads")}
    return model.model_copy(update=wider)


def dtype(machine: Machine) -> Float:
    """What models are run in there."""
    return "f32" if machine.shared else "bf16"


def programs(machine: Machine, wanted: Sequence[Layered]) -> Iterator[tuple[Layered, Run]]:
    """Compiled; steps that store the weights alike share them."""
    stored: dict[tuple, Steps] = {}
    for each in wanted:
        storage = plan_storage(each.model, each.mesh, each.roles, each.roles)
        key = (each.model, storage)
        if key not in stored:
            options = EngineOptions(machine.devices, words={})  # nothing of a calibration can be less
            stored[key] = Steps(each.model, each.mesh, storage, each.formats, options)
        yield each, stored[key].ready(each.roles, each.phase, each.batch, each.tokens)
