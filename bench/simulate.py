"""How fast a load is simulated, and what scheduling alone costs a step: on one core, in one run.

    python bench/simulate.py [--requests 1000000] [--json simulate.json]

The load: prompts of 128 to 4,096 tokens and outputs of 16 to 500, mixed, Poisson arrivals at shares of what
the server sustains, Llama 3.1 8B on two H100 with 256 slots and as much KV memory as they have. Seconds are
those of the process, so that a busy machine disturbs them little; those by the clock are given beside them.

Scheduling alone: `schedule` and `finish` of full slots in which a request ends and another begins every few
steps, without any model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

from conditions import conditions, last_core

from partita.cost.setting import Setting
from partita.scheduler import Capacity, Policy, Request, Scheduler, parse_policy
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_roles
from partita.simulation import Limits, drawn, open_loop, simulate
from partita.simulation.run import Simulated
from partita.simulation.server import Server
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.traffic import Traffic, parse_lengths

PROMPTS, OUTPUTS = "128:3,512:3,1024:2,4096:1", "16,64,200,500"
CASES = (("decode-first", 0.5), ("decode-first", 0.9), ("prefill-first", 0.9), ("mixed", 1.2))
"""Policies, and arrivals as a share of `SUSTAINED`."""
SUSTAINED = 50.0
"""Requests a second, about what the server sustains of this mix."""


def load(policy_name: str, share: float, requests: int) -> dict[str, Any]:
    """One simulation, tables of prices and drawing of requests included."""
    began, by_clock = time.process_time(), time.perf_counter()
    mesh = parse_mesh("x=2")
    setting = Setting(
        catalogue_model("llama3.1-8b"),
        parse_cluster("h100:1x2"),
        mesh,
        Formats(),
        Workload(prompt=1, output=1, batch=1),
    )
    traffic = Traffic.of(parse_lengths(PROMPTS, "prompt"), parse_lengths(OUTPUTS, "output"))
    sent = open_loop(drawn(traffic, requests, 0), share * SUSTAINED)
    roles = parse_roles("ws1d", "heads", mesh.axes)
    server, policy = Server(setting, roles, roles, 256, sent.longest), parse_policy(policy_name)
    prices = server.prices("estimate", policy.budget)
    found = simulate(Simulated(server.capacity(policy.budget), prices, Limits()), policy, sent)
    seconds = time.process_time() - began
    return {
        "policy": policy_name,
        "share": share,
        "requests": requests,
        "seconds": seconds,
        "clock_seconds": time.perf_counter() - by_clock,
        "steps": found.steps,
        "simulated_seconds": found.seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def scheduling(slots: int, waiting: int, steps: int = 2000) -> float:
    """Microseconds of a step's `schedule` and `finish`; in a step one of the slots ends on average."""
    scheduler = Scheduler(Capacity(slots=slots, blocks=64 * slots), Policy(name="p", budget=slots + 512))
    for number in range(2 * slots + waiting + steps):
        # the first ones end one after the other, the others after as many steps as there are slots
        output = number + 2 if number < slots else slots
        scheduler.add(Request(number, 64, min(output, 900), key=number % 8))
    while len(scheduler.running) < slots:
        scheduler.finish(scheduler.schedule())
    began = time.process_time()
    for _ in range(steps):
        scheduler.finish(scheduler.schedule())
    return (time.process_time() - began) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--json")
    asked = parser.parse_args()
    core = last_core()
    if core is not None:
        os.sched_setaffinity(0, {core})
    result: dict[str, Any] = {"conditions": conditions(core), "loads": [], "scheduling": []}
    for policy, share in CASES:
        found = load(policy, share, asked.requests)
        result["loads"].append(found)
        print(
            f"{policy} at {share:.0%}: {found['requests']:,} requests, {found['steps']:,} steps in "
            f"{found['seconds']:.1f} s ({found['clock_seconds']:.1f} s by the clock)",
            flush=True,
        )
    for slots, waiting in ((256, 1000), (256, 100_000), (1024, 1000), (4096, 1000), (4096, 100_000)):
        micros = scheduling(slots, waiting)
        result["scheduling"].append({"slots": slots, "waiting": waiting, "microseconds": micros})
        print(f"scheduling, {slots} slots, {waiting:,} waiting: {micros:.1f} us a step", flush=True)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
