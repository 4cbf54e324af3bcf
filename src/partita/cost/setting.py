"""What is predicted: a model on a cluster, its formats and workload; everything but the layout of a phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from partita.cost.links import mesh_links
from partita.cost.roofline import Peaks, peaks
from partita.cost.schedule import StageLayers, split_layers
from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.workload import Workload


@dataclass(frozen=True)
class Setting:
    """A model on a cluster, its formats and workload.

    `mesh` has the chips of one stage; with one stage, the default, they are all of the cluster's.
    `memory_utilization` is the part of each chip's memory that may be used, above 0 and at most 1.

    Errors of a mesh, format or number of stages that does not fit are raised when it is first used.
    """

    model: Model
    cluster: Cluster
    mesh: Mesh
    formats: Formats
    workload: Workload
    stages: int = 1
    memory_utilization: float = 1.0

    @property
    def capacity_bytes(self) -> int:
        """Bytes of a chip's memory that may be used."""
        return self.cluster.chip.usable_bytes(self.memory_utilization)

    @cached_property
    def stage_cluster(self) -> Cluster:
        """The chips of one stage (`stage_of`)."""
        return stage_of(self.cluster, self.stages)

    @cached_property
    def peaks(self) -> Peaks:
        """The peaks of one stage's chips and links."""
        return peaks(self.cluster.chip, self.formats, mesh_links(self.mesh, self.stage_cluster))

    @cached_property
    def parts(self) -> tuple[StageLayers, ...]:
        """What each stage runs, in order."""
        return split_layers(self.model, self.stages)

    @cached_property
    def hop_bandwidth(self) -> float:
        """Bytes per second one chip sends to its partner in the next stage, over the slowest axis."""
        return self.cluster.bandwidth_bytes_per_second(slowest_axis(self.cluster))


def slowest_axis(cluster: Cluster) -> int:
    """The slowest physical axis that joins anything: the first of more than one chip, else the last."""
    return next((i for i, size in enumerate(cluster.shape) if size > 1), len(cluster.shape) - 1)


def stage_of(cluster: Cluster, stages: int) -> Cluster:
    """The chips of one of `stages` pipeline stages, which lie one after the other on the slowest axis.

    Raises InputError (field "stages") where they do not divide that axis.
    """
    index = slowest_axis(cluster)
    size = cluster.shape[index]
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1 or size % stages:
        raise InputError(
            "stages",
            stages,
            f"must be a whole number that divides the slowest axis of {cluster.name}, "
            f"{_along(cluster, index)}",
        )
    if stages == 1:
        return cluster
    axes = list(cluster.fabric)
    axes[index] = axes[index].model_copy(update={"size": size // stages})
    return cluster.model_copy(update={"name": f"a stage of {cluster.name}", "fabric": tuple(axes)})


def _along(cluster: Cluster, axis: int) -> str:
    """What lies along a physical axis: "3 groups of 8 chips"."""
    size, inside = cluster.shape[axis], math.prod(cluster.shape[axis + 1 :])
    return f"{size} chips" if inside == 1 else f"{size} groups of {inside} chips"
