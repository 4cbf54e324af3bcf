"""The options of `partita simulate`, and the load and the server that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.plan_options import TokenOptions
from partita.cost.setting import Setting
from partita.errors import InputError
from partita.planner.pair import parse_basis
from partita.planner.plan import best_plan
from partita.planner.request import PlanRequest
from partita.planner.saved import load_plan
from partita.scheduler import POLICIES, Policy, parse_policy
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import Roles, parse_roles
from partita.simulation.load import Load, closed_loop, drawn, open_loop, replay
from partita.simulation.prices import Basis
from partita.simulation.result import Limits
from partita.simulation.server import Server
from partita.specs.cluster import parse_cluster
from partita.specs.formats import Formats
from partita.specs.trace import read_arrivals
from partita.specs.traffic import Traffic
from partita.specs.units import parse_duration, parse_rate
from partita.specs.workload import Workload

Text = str | None
REQUESTS = 10_000
SLOTS = 64

What = Annotated[
    str, typer.Argument(metavar="MODEL|PLAN", help="MODEL with --on, or a plan.json of `plan --save`.")
]
On = Annotated[Text, typer.Option("--on", metavar="CLUSTER", help="tpu-v4:4x4x4, or a TOML file.")]
Rate = Annotated[Text, typer.Option("--rate", help="Requests come at this rate, whoever waits: 20/s.")]
Arrivals = Annotated[
    str, typer.Option("--arrivals", help="poisson, gamma:SHAPE (below 1: bursts) or even, at --rate.")
]
Clients = Annotated[
    int | None, typer.Option("--clients", help="So many clients, each with one request at a time.")
]
Trace = Annotated[
    Text,
    typer.Option("--trace", help="CSV of requests: prompt,output and optionally prefix,arrival,weight."),
]
Requests = Annotated[
    int | None,
    typer.Option("--requests", help=f"How many. Default: {REQUESTS:,}, or all of a trace with arrivals."),
]
Skip = Annotated[
    int | None,
    typer.Option("--skip", help="First requests that are not counted. Default: 0, or the number of clients."),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", help=f"Sequences written together. Default: {SLOTS}, or the plan's batch."),
]
PolicyText = Annotated[
    str,
    typer.Option("--policy", help=f"One or more, with commas: {', '.join(POLICIES)}; :TOKENS of a step."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of what is drawn: lengths and arrivals.")]
MemoryShare = Annotated[
    float, typer.Option("--memory-share", help="Part of a chip's memory for weights, activations and cache.")
]
By = Annotated[
    Text,
    typer.Option(
        "--by",
        metavar="bound|estimate",
        help="Times of steps. Default: the estimate where there is a profile.",
    ),
]
MaxTtft = Annotated[Text, typer.Option("--max-ttft", help="Limit of a good request: 300ms.")]
MaxTpot = Annotated[Text, typer.Option("--max-tpot", help="Limit of a good request: 30ms.")]
FfnText = Annotated[Text, typer.Option("--ffn", help=f"{o.FFN_HELP} Default: the planner's choice.")]
AttentionText = Annotated[Text, typer.Option("--attention", help=o.ATTENTION_HELP)]


@dataclass(frozen=True)
class LoadOptions:
    """What comes, as the options give it."""

    tokens: TokenOptions
    rate: Text
    arrivals: str
    clients: int | None
    requests: int | None
    seed: int

    def load(self) -> tuple[Traffic, Load]:
        """The lengths as a distribution, and the requests. Raises InputError unless exactly one of rate,
        clients, and a trace with arrivals says when they come."""
        traffic, at = self._traffic()
        if self.rate is not None and self.clients is not None:
            raise InputError("clients", self.clients, "give --rate or --clients, not both")
        if self.rate is None and self.clients is None:
            if at is None:
                raise InputError("rate", None, "give --rate, --clients, or a --trace with a column arrival")
            return traffic, replay(traffic, at, self.requests)
        load = drawn(traffic, REQUESTS if self.requests is None else self.requests, self.seed)
        if self.clients is not None:
            return traffic, closed_loop(load, self.clients)
        assert self.rate is not None
        return traffic, open_loop(load, parse_rate(self.rate, "rate"), self.arrivals, self.seed)

    def _traffic(self):
        if self.tokens.trace is not None:
            _ = self.tokens.traffic()  # refuses lengths beside a trace
            return read_arrivals(self.tokens.trace)
        found = self.tokens.traffic()
        if found is None:
            means = self.tokens.means(None)
            found = Traffic.of(means["prompt"], means["output"], means["prefix"])
        return found, None

    def skipped(self, skip: int | None, load: Load) -> int:
        """First requests that do not count: clients that all begin at once say nothing of how it goes on."""
        if skip is not None:
            return skip
        return self.clients if self.clients is not None and self.clients < load.requests else 0

    def as_json(self, load: Load) -> dict:
        """What came, in the JSON of a simulation."""
        kind = "closed" if self.clients is not None else "open" if self.rate is not None else "trace"
        return {
            "kind": kind,
            "requests": load.requests,
            "rate": None if self.rate is None else parse_rate(self.rate, "rate"),
            "arrivals": self.arrivals if kind == "open" else None,
            "clients": self.clients,
            "seed": self.seed,
            "mean_prompt": float(load.prompt.mean()),
            "mean_output": float(load.output.mean()),
            "mean_prefix": float(load.prefix.mean()),
        }


@dataclass(frozen=True)
class ServerOptions:
    """The model, its layouts and its place, as the options give them; None where a plan has its own."""

    what: str
    on: Text
    mesh: Text
    ffn: Text
    attention: Text
    prefill_ffn: Text
    prefill_attention: Text
    slots: int | None
    formats: Formats
    memory_share: float

    def server(self, traffic: Traffic, load: Load) -> Server:
        """Raises InputError where options do not go together."""
        if not 0 < self.memory_share <= 1:
            raise InputError("memory-share", self.memory_share, "a share above 0 and up to 1 is accepted")
        if self.slots is not None and not 1 <= self.slots <= 65536:
            raise InputError("slots", self.slots, "a whole number from 1 to 65,536 is accepted")
        setting, prefill, decode = self._saved() if self.on is None else self._given(traffic)
        slots = setting.workload.batch if self.slots is None else self.slots
        return Server(setting, prefill, decode, slots, load.longest, self.memory_share)

    def _saved(self) -> tuple[Setting, Roles, Roles]:
        names = ("mesh", "ffn", "attention", "prefill_ffn", "prefill_attention")
        for name in names:
            if (value := getattr(self, name)) is not None:
                raise InputError(name.replace("_", "-"), value, "needs --on and a MODEL; a plan has its own")
        plan = load_plan(self.what)
        return plan.setting, plan.prefill, plan.decode

    def _given(self, traffic: Traffic) -> tuple[Setting, Roles, Roles]:
        from partita.api import read_model

        assert self.on is not None
        slots = SLOTS if self.slots is None else self.slots
        means = {name: max(1, round(getattr(traffic, f"mean_{name}"))) for name in ("prompt", "output")}
        workload = Workload(**means, batch=slots, prefill_batch=1)
        model, cluster = read_model(self.what), parse_cluster(self.on)
        if self.ffn is None and self.attention is None:
            for name in ("prefill_ffn", "prefill_attention"):
                if (value := getattr(self, name)) is not None:
                    raise InputError(name.replace("_", "-"), value, "needs --ffn or --attention beside it")
            mesh = None if self.mesh is None else parse_mesh(self.mesh)
            request = PlanRequest(
                model=model,
                clusters=(cluster,),
                formats=(self.formats,),
                workload=workload,
                auto_chunk=True,  # where a prompt does not fit whole
                between=False,
                mesh=mesh,
                stages=1,
                top=1,
            )
            plan = best_plan(request)
            return plan.decode.setting, plan.prefill.layout.roles, plan.decode.layout.roles
        setting = Setting(
            model,
            cluster,
            parse_mesh(self.mesh) if self.mesh else Mesh.of(cluster.shape),
            self.formats,
            workload,
        )
        _ = setting.peaks  # a mesh or format that does not fit is refused here
        ffn, attention = self.ffn or "ws2d", self.attention or "batch"
        axes = setting.mesh.axes
        decode = parse_roles(ffn, attention, axes)
        prefill = parse_roles(self.prefill_ffn or ffn, self.prefill_attention or attention, axes)
        return setting, prefill, decode


def read_limits(max_ttft: Text, max_tpot: Text) -> Limits:
    """Raises InputError naming the option."""
    return Limits(
        None if max_ttft is None else parse_duration(max_ttft, "max-ttft"),
        None if max_tpot is None else parse_duration(max_tpot, "max-tpot"),
    )


def read_basis(server: Server, by: Text) -> Basis:
    """As asked, else the estimate where there is a profile: no layouts are ranked by it."""
    if by is not None:
        return parse_basis(by)
    return "bound" if server.setting.cluster.profile is None else "estimate"


def read_policies(text: str) -> list[Policy]:
    """The policies to compare; raises InputError (field "policy")."""
    found = [parse_policy(part) for part in text.split(",")]
    for i, policy in enumerate(found):
        if policy.name in [other.name for other in found[:i]]:
            raise InputError("policy", policy.name, "is named twice")
    return found
