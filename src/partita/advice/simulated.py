"""A plan at a rate, simulated: the percentiles that its users see, where the closed form has means only."""

from __future__ import annotations

from dataclasses import replace

from partita.errors import InputError
from partita.planner.pair import Pair
from partita.scheduler import POLICIES
from partita.simulation.load import drawn, open_loop
from partita.simulation.result import Limits, Result
from partita.simulation.run import Simulated, simulate
from partita.simulation.server import Server
from partita.specs.traffic import Traffic

REQUESTS = 2000
"""Enough for the 99th percentile of one load, whose requests and gaps are drawn."""


def simulated(pair: Pair, traffic: Traffic | None, rate: float) -> Result | None:
    """Poisson arrivals at a rate, of the traffic or of the workload's own shape, on the plan's slots and
    memory, by its basis; prompts in the plan's chunks, decode first.

    None where it is not simulated: with pipeline stages or several samples of a prompt, and where requests of
    the traffic do not fit beside steps of that size.
    """
    setting, workload = pair.decode.setting, pair.decode.setting.workload
    if setting.stages > 1 or workload.samples > 1:
        return None
    if traffic is None:
        traffic = Traffic.of(workload.prompt, workload.output, workload.prefix)
    load = open_loop(drawn(traffic, REQUESTS, 0), rate)
    slots = workload.batch
    portion = workload.chunk or max(1, int((traffic.prompt - traffic.prefix).max()))
    budget = slots + portion * pair.prefill.batch
    policy = replace(POLICIES["switching"], name="decode-first", budget=budget, switches=False)
    policy = replace(policy, paced=False, chunk=workload.chunk, readers=pair.prefill.batch)
    server = Server(
        setting,
        pair.prefill.layout.roles,
        pair.decode.layout.roles,
        slots,
        max(load.longest, workload.context),
        memory_share=1.0,
    )
    try:
        capacity = server.capacity(portion)
    except InputError:
        return None
    capacity = replace(capacity, slots=max(capacity.shards, slots // capacity.shards * capacity.shards))
    return simulate(Simulated(capacity, server.prices(pair.basis, budget), Limits()), policy, load)
