"""What is asked of the planner for one cluster. Knows no prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from partita.cost.setting import stage_of
from partita.planner.basis import Basis, basis_of
from partita.planner.pair import Objective
from partita.planner.space import Topology, cluster_topology, mesh_topology
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.profile import Profile
from partita.specs.traffic import Traffic
from partita.specs.workload import Workload


@dataclass(frozen=True)
class Question:
    """What is asked of the planner for one cluster.

    batches, prefill_batches: those to choose from, ascending. mesh: one the user fixed. Limits in seconds.
    rate: prompts per second to sustain at least. interleaved: a chunk of a prompt is read between two decode
    steps, and both must stay within the limit on a decode step. traffic: the requests that the rate is of,
    where they are not all as the workload. by: which time is minimised and kept within limits; None for the
    estimate where the cluster's profile compares layouts, else the bound.
    """

    model: Model
    cluster: Cluster
    formats: Formats
    workload: Workload
    batches: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    objective: Objective
    max_ttft: float | None = None
    max_tpot: float | None = None
    mesh: Mesh | None = None
    stages: int = 1
    rate: float | None = None
    interleaved: bool = False
    traffic: Traffic | None = None
    basis: Basis | None = None

    @cached_property
    def ranked_by(self) -> Basis:
        """Raises InputError (field "by") for an estimate on a cluster without a profile."""
        return basis_of((self.cluster,), self.basis)

    @property
    def profile(self) -> Profile | None:
        """Of the estimate; None where the bound is minimised."""
        return self.cluster.profile if self.ranked_by == "estimate" else None

    @cached_property
    def topology(self) -> Topology:
        """The chips of one pipeline stage."""
        chips = stage_of(self.cluster, self.stages)
        return cluster_topology(chips) if self.mesh is None else mesh_topology(self.mesh, chips)

    @property
    def tokens_a_chunk(self) -> int:
        """Of a prompt, in one prefill step."""
        return min(self.workload.chunk or self.workload.new_tokens, self.workload.new_tokens)
