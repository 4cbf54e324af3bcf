"""One load through one server by one or more policies, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.scheduler import Capacity, Policy
from partita.sharding.roles import Roles
from partita.simulation.load import Load
from partita.simulation.prices import Basis
from partita.simulation.result import Limits, Result
from partita.simulation.run import Simulated, simulate
from partita.simulation.server import Server

SCHEMA = "partita.simulation/1"


@dataclass(frozen=True)
class Run:
    """What one policy made of the load, with what the server held, and the decode layouts there were."""

    result: Result
    capacity: Capacity
    decode: tuple[Roles, ...]


@dataclass(frozen=True)
class Study:
    """Policies compared; `load` is what is said of the load, `skip` the first requests that do not count."""

    server: Server
    basis: Basis
    limits: Limits
    load: Mapping[str, Any]
    skip: int
    runs: tuple[Run, ...]

    @property
    def profile(self) -> str | None:
        """Name of the profile that times are estimated by; None where they are bounds."""
        profile = self.server.setting.cluster.profile
        return None if self.basis == "bound" or profile is None else profile.name

    def as_json(self) -> dict[str, Any]:
        """The object `simulate --json` prints; its keys are stable."""
        setting = self.server.setting
        return {
            "schema": SCHEMA,
            "model": setting.model.name,
            "cluster": setting.cluster.name,
            "chips": setting.cluster.chips,
            "formats": setting.formats.model_dump(),
            "mesh": setting.mesh.size,
            "prefill": str(self.server.prefill),
            "decode": str(self.server.decode),
            "by": self.basis,
            "profile": self.profile,
            "load": {**self.load, "skipped": self.skip},
            "limits": {"ttft_seconds": self.limits.ttft, "tpot_seconds": self.limits.tpot},
            "policies": [
                {
                    **run.result.as_json(self.limits),
                    "server": {
                        "slots": run.capacity.slots,
                        "blocks": run.capacity.blocks,
                        "block_tokens": run.capacity.block,
                        "shards": run.capacity.shards,
                        "decode_layouts": [str(roles) for roles in run.decode],
                    },
                }
                for run in self.runs
            ],
        }


def study(
    server: Server,
    policies: Sequence[Policy],
    load: Load,
    *,
    basis: Basis,
    limits: Limits,
    said: Mapping[str, Any],
    skip: int = 0,
) -> Study:
    """Simulates each policy. Raises the errors of `simulate`, of `Server` and of `Scheduler`."""
    runs = []
    for policy in policies:
        others = server.alternatives(basis) if policy.switches else []
        capacity = server.capacity(policy.budget)
        prices = server.prices(basis, policy.budget, others)
        result = simulate(Simulated(capacity, prices, limits), policy, load, skip)
        runs.append(Run(result, capacity, (server.decode, *others)))
    return Study(server, basis, limits, said, skip, tuple(runs))
