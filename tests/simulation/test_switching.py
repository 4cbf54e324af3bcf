"""A day in which load swings: decode that changes its layout against decode that keeps either."""

from dataclasses import replace

import numpy as np
import pytest

from partita.cost.setting import Setting
from partita.scheduler import POLICIES
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_roles
from partita.simulation import Limits, Load, Result, Simulated, drawn, simulate
from partita.simulation.server import Server
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.traffic import Traffic, parse_lengths

LIMITS = Limits(ttft=2.0, tpot=0.05)


def day(requests: int) -> Load:
    """Mixed requests, of which from 0.4 to 6 come a second, and from night to night 300 s pass."""
    lengths = parse_lengths("512:3,2048:2,8192:1", "prompt"), parse_lengths("64,256,512", "output")
    sent, draws = drawn(Traffic.of(*lengths), requests, 0), np.random.default_rng(3)
    now, arrival = 0.0, []
    for _ in range(requests):
        now += draws.exponential(1 / (3.2 - 2.8 * np.cos(2 * np.pi * now / 300)))
        arrival.append(now)
    return replace(sent, arrival=np.array(arrival))


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Llama 3.1 70B on 8 H100; attention over heads is better for few sequences, over the batch for many."""
    mesh = parse_mesh("x=8")
    model, cluster = catalogue_model("llama3.1-70b"), parse_cluster("h100:1x8")
    setting = Setting(model, cluster, mesh, Formats(), Workload(prompt=1, output=1, batch=1))
    heads, batch = (parse_roles("ws1d", attention, mesh.axes) for attention in ("heads", "batch"))
    load, found = day(2500), {}
    policy = replace(POLICIES["switching"], paced=False)
    for name, decode, others in (("heads", heads, []), ("batch", batch, []), ("switching", heads, [batch])):
        server = Server(setting, heads, decode, 256, load.longest)
        prices = server.prices("estimate", policy.budget, others)
        found[name] = simulate(Simulated(server.capacity(policy.budget), prices, LIMITS), policy, load)
    return found


def test_it_has_at_least_the_goodput_of_every_fixed_layout(results: dict[str, Result]):
    goodput = {name: each.good(LIMITS) * each.requests_per_second for name, each in results.items()}
    assert goodput["switching"] >= max(goodput["heads"], goodput["batch"]) > 0
    assert goodput["switching"] > 1.01 * goodput["heads"]


def test_it_changes_as_often_as_load_swings_and_no_more(results: dict[str, Result]):
    swings = results["switching"].seconds / 300
    assert swings / 2 <= results["switching"].moves <= 4 * swings


def test_tokens_come_no_slower_than_in_either(results: dict[str, Result]):
    mean = {name: each.tpot.mean() for name, each in results.items()}
    assert mean["switching"] <= 1.001 * min(mean["heads"], mean["batch"])
