"""What a user asks of the planner, and the cases it is made of: one for each cluster, format and so on.

A `PlanRequest` says what is left open ("auto"); each of its `Case`s has the sizes that are tried for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as every
from typing import NamedTuple

from partita.cost.schedule import split_layers
from partita.cost.setting import Setting, slowest_axis, stage_of
from partita.errors import InputError
from partita.planner.pair import Basis, Objective, basis_of, prompts_of
from partita.planner.space import Topology, cluster_topology, mesh_topology
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.hardware import MEMORY_UTILIZATION
from partita.specs.model import Model
from partita.specs.profile import Profile
from partita.specs.traffic import Traffic
from partita.specs.workload import MOST_CHUNKS, Workload

BATCHES = tuple(2**i for i in range(13))
"""Batches tried where the batch is left to the planner."""

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens of a prompt in one prefill step that are tried where the chunk is left to the planner."""

SMALL_CHUNKS = (1, 2, 4, 8, 16, 32, 64)
"""Tried too where nothing fits with the others."""


class Portion(NamedTuple):
    """What one prefill reads: so many prompts, each so many tokens at a time; None for all of them."""

    batch: int
    chunk: int | None


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A workload to plan for, and what may be chosen.

    workload: its batch, prefill_batch and chunk are taken where `auto_batch`, `auto_prefill_batch` (by
    default the same) and `auto_chunk` do not leave them to the planner. clusters, formats: to choose from.
    between: chunks are read between two decode steps, so that both must stay within the limit on a decode
    step. mesh: fixed, for one cluster. stages: of a pipeline; None for every number that divides the nodes.
    max_ttft, max_tpot: limits in seconds. rate: prompts per second to sustain. memory_bytes: of one chip,
    where less than all may be used; or else memory_utilization, the part of it, by default
    `MEMORY_UTILIZATION`. traffic: requests that are not all alike, whose means the workload has.
    basis: which time is minimised and limited; None for the estimate where every cluster's profile compares
    layouts, else the bound. top: how many pairs of layouts are listed.
    """

    model: Model
    clusters: tuple[Cluster, ...]
    formats: tuple[Formats, ...]
    workload: Workload
    objective: Objective = "latency"
    auto_batch: bool = False
    auto_prefill_batch: bool | None = None
    auto_chunk: bool = False
    between: bool = True
    mesh: Mesh | None = None
    stages: int | None = None
    max_ttft: float | None = None
    max_tpot: float | None = None
    rate: float | None = None
    memory_bytes: int | None = None
    memory_utilization: float | None = None
    traffic: Traffic | None = None
    basis: Basis | None = None
    top: int = 5

    @classmethod
    def of(
        cls, setting: Setting, objective: Objective = "latency", basis: Basis | None = None
    ) -> PlanRequest:
        """The request for the best layouts in a setting, which leaves nothing else open."""
        return cls(
            model=setting.model,
            clusters=(setting.cluster,),
            formats=(setting.formats,),
            workload=setting.workload,
            objective=objective,
            mesh=setting.mesh,
            stages=setting.stages,
            memory_utilization=setting.memory_utilization,
            basis=basis,
        )

    @property
    def utilization(self) -> float:
        """The part of each chip's memory that may be used, of all or of the bytes given."""
        if self.memory_utilization is not None:
            return self.memory_utilization
        return MEMORY_UTILIZATION if self.memory_bytes is None else 1.0

    @cached_property
    def ranked_by(self) -> Basis:
        """Raises InputError (field "by") for an estimate on a cluster without a profile."""
        return basis_of(self.clusters, self.basis)

    @property
    def leaves_prefill_batch(self) -> bool:
        """Whether the prefill batch is left to the planner."""
        return self.auto_batch if self.auto_prefill_batch is None else self.auto_prefill_batch

    def batches(self, chips: int) -> tuple[int, ...]:
        """Batches of decode that are tried on so many chips. No larger one has a lower latency or a longer
        context, but it may sustain a rate."""
        if not self.auto_batch:
            return (self.workload.batch,)
        if self.objective in ("latency", "context") and self.rate is None:
            return BATCHES[:1]
        return tuple(sorted({*BATCHES, *_multiples(chips)}))

    def prefill_batches(self, chips: int) -> tuple[int, ...]:
        """Batches of prefill that are tried: up to all prompts of the largest batch. One prompt alone is read
        soonest, and takes least memory."""
        if not self.leaves_prefill_batch:
            return (self.workload.prefill_batch,)
        if self.objective in ("latency", "context") and self.rate is None:
            return BATCHES[:1]
        most = prompts_of(self.workload, self.batches(chips)[-1])
        tried = {*BATCHES, *_multiples(chips)}
        if not self.auto_batch:  # the batch has divisors of its own
            tried |= {most // part for part in (1, 2, 3, 4, 6, 8) if most % part == 0}
        return tuple(sorted(batch for batch in tried if batch <= most))

    @property
    def chunks(self) -> tuple[int | None, ...]:
        """Tokens of a prompt in one prefill step that are tried; None for all of them."""
        if not self.auto_chunk:
            return (self.workload.chunk,)
        return (None, *self.shorter(CHUNKS))

    def shorter(self, chunks: Sequence[int]) -> tuple[int, ...]:
        """Those of the chunks that can be chunks of a prompt."""
        new = self.workload.new_tokens
        return tuple(chunk for chunk in chunks if chunk < new <= chunk * MOST_CHUNKS)

    def cases(self) -> list[Case]:
        """Everything to search; raises InputError on options that exclude each other."""
        if self.mesh is not None and len(self.clusters) > 1:
            raise InputError("mesh", self.mesh, "fits one cluster; name one with its shape")
        _ = self.ranked_by  # refuses an estimate where there is none
        found = [
            Case(
                self,
                cluster,
                formats,
                self.batches(cluster.chips),
                self.prefill_batches(cluster.chips),
                self.chunks,
                stages,
            )
            for cluster in map(self._limited, self.clusters)
            for stages in self._stages(cluster)
            for formats in self.formats
        ]
        for case in found:
            _ = case.topology  # a mesh that does not fit is refused before anything is priced
        return found

    def _stages(self, cluster: Cluster) -> Iterator[int]:
        if self.stages is not None:
            split_layers(self.model, self.stages)
            stage_of(cluster, self.stages)
            yield self.stages
            return
        yield 1
        axis = cluster.fabric[slowest_axis(cluster)]
        if self.mesh is None and axis.kind == "network":
            most = min(axis.size, self.model.layers)
            yield from (stages for stages in range(2, most + 1) if axis.size % stages == 0)

    def _limited(self, cluster: Cluster) -> Cluster:
        """The cluster with no more memory than may be used."""
        if self.memory_bytes is None:
            return cluster
        chip = cluster.chip
        if not chip.runtime_bytes < self.memory_bytes <= chip.hbm_bytes:
            raise InputError(
                "memory",
                self.memory_bytes,
                f"more than the {chip.runtime_bytes:,} bytes that the runtime keeps and at most the "
                f"{chip.hbm_bytes:,} of {chip.name} are accepted",
            )
        return cluster.model_copy(update={"chip": chip.model_copy(update={"hbm_bytes": self.memory_bytes})})


@dataclass(frozen=True)
class Case:
    """One of the cases that a request is made of: one cluster, formats and number of stages.

    batches, prefill_batches, chunks: those to choose from, the batches ascending.
    """

    request: PlanRequest
    cluster: Cluster
    formats: Formats
    batches: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    chunks: tuple[int | None, ...] = (None,)
    stages: int = 1

    @property
    def workload(self) -> Workload:
        return self.request.workload

    @property
    def capacity_bytes(self) -> int:
        """Bytes of a chip's memory that may be used."""
        return self.cluster.chip.usable_bytes(self.request.utilization)

    @cached_property
    def portions(self) -> tuple[Portion, ...]:
        """What a prefill may read. Chunks that are left open are not of more tokens than a prompt in all: as
        many tokens of fewer prompts cost no more, and take less memory."""
        open_, new = len(self.chunks) > 1, self.workload.new_tokens
        return tuple(
            Portion(batch, chunk)
            for chunk in self.chunks
            for batch in self.prefill_batches
            if chunk is None or not open_ or batch == self.prefill_batches[0] or batch * chunk <= new
        )

    @property
    def model(self) -> Model:
        return self.request.model

    @property
    def ranked_by(self) -> Basis:
        """Which time is minimised and kept within limits: the same in all cases of a request."""
        return self.request.ranked_by

    @property
    def profile(self) -> Profile | None:
        """The cluster's, if times are estimates; None where the bound is minimised."""
        return self.cluster.profile if self.ranked_by == "estimate" else None

    @property
    def interleaved(self) -> bool:
        """Whether a chunk of a prompt is read between two decode steps, which both must stay within the limit
        on a decode step."""
        asked = self.request.auto_chunk or self.workload.chunk is not None
        return self.request.between and asked

    @cached_property
    def topology(self) -> Topology:
        """The chips of one pipeline stage."""
        chips, mesh = stage_of(self.cluster, self.stages), self.request.mesh
        return cluster_topology(chips) if mesh is None else mesh_topology(mesh, chips)

    def tokens_of(self, chunk: int | None) -> int:
        """Tokens of a prompt that one prefill step reads."""
        return min(chunk or self.workload.new_tokens, self.workload.new_tokens)


def _multiples(chips: int) -> set[int]:
    """Batches that chips divide where these are no power of two."""
    even = chips & (chips - 1) == 0
    return set() if even else {chips * size for size in BATCHES if chips * size <= BATCHES[-1]}


def formats_of(
    weights: Sequence[str], kv: Sequence[str], activations: str, reduce: str
) -> tuple[Formats, ...]:
    """Every combination of formats to choose from."""
    return tuple(
        Formats.model_validate({"weights": w, "kv": k, "activations": activations, "reduce": reduce})
        for w, k in every(weights, kv)
    )
