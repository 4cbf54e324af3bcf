"""A layout for each phase on one storage of the weights, priced together, and what a plan aims at.

A plan is searched, limited and stated by one of its two times alone, its basis: the bound or the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from partita.cost.ledger import Ledger
from partita.cost.phase import PhaseRun
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction, largest, moving_seconds, reshard_ledgers
from partita.cost.schedule import StageLayers
from partita.cost.setting import Setting
from partita.errors import InputError
from partita.planner.moments import Caches, Live, Moment, Steps, account, caches_beside
from partita.specs.cluster import Cluster
from partita.specs.workload import Workload

Basis = Literal["bound", "estimate"]
BASES: tuple[Basis, ...] = ("bound", "estimate")


def parse_basis(text: str) -> Basis:
    """Raises InputError (field "by") where it is none of `BASES`."""
    if text not in BASES:
        raise InputError("by", text, f"accepted are {', '.join(BASES)}")
    return text


def basis_of(clusters: Iterable[Cluster], asked: Basis | None = None) -> Basis:
    """The basis asked for, else the estimate where every cluster's profile compares layouts.

    Raises InputError (field "by") where an estimate is asked for and a cluster has no profile.
    """
    clusters = tuple(clusters)
    bare = next((cluster.name for cluster in clusters if cluster.profile is None), None)
    if asked == "estimate" and bare is not None:
        raise InputError("by", asked, f"{bare} has no efficiency profile to estimate by; bound is accepted")
    compared = all(cluster.profile is not None and cluster.profile.compares for cluster in clusters)
    return asked or ("estimate" if compared else "bound")


def step_seconds(prediction: Prediction, basis: Basis) -> float:
    """Seconds of the longest step; raises the errors of `expected`."""
    return prediction.step_seconds if basis == "bound" else expected(prediction).step_seconds


def total_seconds(prediction: Prediction, basis: Basis) -> float:
    """Seconds of the whole phase; raises the errors of `expected`."""
    return prediction.total_seconds if basis == "bound" else expected(prediction).total_seconds


def expected(prediction: Prediction) -> PhaseEstimate:
    """The estimate. Raises InputError (field "by") where the cluster has no profile."""
    if prediction.estimate is None:
        basis_of((prediction.setting.cluster,), "estimate")
    assert prediction.estimate is not None
    return prediction.estimate


Objective = Literal["latency", "cost", "throughput", "context"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "cost", "throughput", "context")


def parse_objective(text: str) -> Objective:
    """Raises InputError (field "objective") where it is none of `OBJECTIVES`."""
    if text not in OBJECTIVES:
        raise InputError("objective", text, f"accepted are {', '.join(OBJECTIVES)}")
    return text


@dataclass(frozen=True)
class Pair:
    """One layout for each phase on one storage, priced; its seconds and costs are bounds or estimates.

    Estimates are those of its cluster's profile, and raise InputError (field "by") where it has none.
    """

    prefill: Prediction
    decode: Prediction
    basis: Basis = "bound"

    def priced_in(self, setting: Setting) -> Pair:
        """The same layouts and storage in another setting."""
        return Pair(self.prefill.priced_in(setting), self.decode.priced_in(setting), self.basis)

    @property
    def reshard_seconds(self) -> float:
        """Seconds of moving the prompts' keys and values between the layouts, once per prefill."""
        profile = None if self.basis == "bound" else expected(self.decode).profile
        return moving_seconds(self._moves.values(), self.decode.setting.peaks, profile)

    @cached_property
    def _moves(self) -> dict[StageLayers, Ledger]:
        return reshard_ledgers(self.prefill, self.decode)

    @property
    def ttft_seconds(self) -> float:
        """Time to the first token: one prefill."""
        return total_seconds(self.prefill, self.basis)

    @property
    def tpot_seconds(self) -> float:
        """Time of an output token: the longest decode step, that on the whole cache."""
        return step_seconds(self.decode, self.basis)

    @property
    def chunk_seconds(self) -> float:
        """Seconds of one prefill step."""
        return step_seconds(self.prefill, self.basis)

    @property
    def decode_seconds(self) -> float:
        """Seconds of all decode steps."""
        return total_seconds(self.decode, self.basis)

    @property
    def prefill_seconds(self) -> float:
        """Seconds until the whole decode batch has its prompts read, in as many prefills as that takes."""
        rounds = -(-prompts_of(self.decode.setting.workload, self.decode.batch) // self.prefill.batch)
        return rounds * (self.ttft_seconds + self.reshard_seconds)

    def fill_seconds(self, rate: float) -> float:
        """Seconds that the first prompt of a prefill batch waits for the last one, where `rate` prompts come
        in a second: (batch - 1) / rate."""
        return (self.prefill.batch - 1) / rate

    @property
    def latency_seconds(self) -> float:
        """Seconds of one request: its prefill, then all decode steps."""
        return self.ttft_seconds + self.reshard_seconds + self.decode_seconds

    @property
    def chip_seconds_per_output_token(self) -> float:
        """Chip-seconds of both phases over the tokens generated."""
        workload = self.decode.setting.workload
        chips = self.decode.setting.cluster.chips
        seconds = self.prefill_seconds + self.decode_seconds
        return chips * seconds / (workload.batch * workload.output)

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens per second of all chips, with the prompts read in between."""
        return self.decode.setting.cluster.chips / self.chip_seconds_per_output_token

    def score(self, objective: Objective) -> float:
        """What the objective minimises."""
        if objective == "latency":
            return self.latency_seconds
        if objective == "context":
            return -float(self.max_context)
        cost = self.chip_seconds_per_output_token
        return cost / self.decode.setting.cluster.chips if objective == "throughput" else cost

    # -- memory ---------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> dict[Moment, Live]:
        """Bytes on a chip of the fullest stage at every moment of the server."""
        return self._memory(self.decode.run)

    @property
    def fullest(self) -> tuple[Moment, Live]:
        """The moment at which a chip holds most, and what it holds."""
        return max(self.memory.items(), key=lambda moment: moment[1].total)

    @property
    def fits(self) -> bool:
        """Whether every moment fits the memory that may be used."""
        return self._fits(self.memory)

    @cached_property
    def max_batch(self) -> int:
        """Most sequences decoded together that still fit, prompts read as they are; 0 if none."""

        def fits(batch: int) -> bool:
            return self._fits(self._memory(replace(self.decode.run, batch=batch)))

        return largest(fits, self.decode.batch_starts)

    @cached_property
    def max_context(self) -> int:
        """Longest cache of each slot with which the batch still fits, prompts read as they are; 0 if none."""

        def fits(tokens: int) -> bool:
            return self._fits(self._memory(replace(self.decode.run, tokens=tokens)))

        return largest(fits, self.decode.split_sizes)

    def _fits(self, memory: dict[Moment, Live]) -> bool:
        return all(live.total <= self.decode.setting.capacity_bytes for live in memory.values())

    def _memory(self, decode: PhaseRun) -> dict[Moment, Live]:
        """The account of a decode like this one's; that of the stage which is fullest at any moment."""
        setting, prefill = decode.setting, self.prefill.run
        prompts, chunk = prefill.batch, setting.workload.chunk
        alive = max(0, decode.batch - prompts * setting.workload.samples)
        chunked = chunk is not None and chunk < setting.workload.new_tokens
        runtime = setting.cluster.chip.runtime_bytes
        found = []
        for part in set(setting.parts):
            written, read = decode.held_by(part), prefill.held_by(part)
            slots = int(written.kv)
            beside = caches_beside(slots, decode.sequences, alive)
            steps = Steps(int(read.activations), int(self._moves[part].held_bytes), int(written.activations))
            weights = int(max(written.weights, read.weights))
            found.append(account(weights, Caches(slots, beside, int(read.kv), chunked), steps, runtime))
        return max(found, key=lambda each: max(live.total for live in each.values()))


def prompts_of(workload: Workload, batch: int) -> int:
    """Prompts that `batch` sequences have: `samples` of them share one, which is prefilled once."""
    return -(-batch // workload.samples)
