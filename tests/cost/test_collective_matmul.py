"""Looped collective einsums in the ledger: what is sent, what is hidden, and which of them are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from partita.cost.collective_matmul import hidden_seconds, messages, steps
from partita.cost.estimate import StepEstimate, estimate, message_seconds, transfer_seconds
from partita.cost.ledger import Entry, Ledger, Loop
from partita.cost.links import Level, Links
from partita.cost.overlap import choose, overlap_for
from partita.cost.roofline import Peaks, bound
from partita.cost.setting import Setting
from partita.cost.step import price_step
from partita.program.options import RunOptions, Way, overlap_of
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.sharding.spec import parse
from partita.specs import Constant, Formats, Profile, Workload, catalogue_model, parse_cluster

TORUS = Links((Level(6.0, kind="torus", axes=3),), {"x": (4,), "y": (4,), "z": (4,)})
SWITCH = Links((Level(6.0, kind="switch"),), {"x": (8,)})
HERE = parse("B L")


def profile(**constants: float) -> Profile:
    fixed = {name.replace("__", "/"): Constant(value=v, fixed="given") for name, v in constants.items()}
    return Profile(name="made", source="here", constants=fixed)


def dot(flops: float) -> Entry:
    return Entry("layer", "einsum", "", (), HERE, flops=flops, needed_flops=flops)


def looped(dot: Entry, sent: float, chips: int, two_way: bool, axes: str = "x", name: str = "a") -> Entry:
    loop = Loop(f"{name}/gather", "all-gather", two_way, chips, (dot,))
    count = messages(chips, 2, two_way)
    return Entry(
        "layer", "collective-permute", "", (), HERE, axes=axes, sent_bytes=sent, messages=count, loop=loop
    )


def simulated(chips: int, two_way: bool, transfer: float, product: float) -> float:
    """The loop's seconds, played through: `transfer` for a shard over one direction's link.

    A gather: a shard is multiplied once it is here; those already here are sent on meanwhile.
    """
    shards = [0.0]  # when each arrives
    if two_way:
        for distance in range(1, (chips - 1) // 2 + 1):
            shards += [distance * transfer] * 2
        if chips % 2 == 0:
            shards.append((chips // 2 - 0.5) * transfer)
    else:
        shards += [distance * transfer for distance in range(1, chips)]
    now = 0.0
    for arrives in shards:
        now = max(now, arrives) + product
    return now


@pytest.mark.parametrize("two_way", [False, True], ids=["one-way", "two-way"])
@pytest.mark.parametrize("chips", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("product", [0.0, 0.3, 1.0, 2.0, 50.0])
def test_what_is_hidden_is_what_a_loop_played_through_saves(chips: int, two_way: bool, product: float):
    """Steps in lockstep are never faster, and both ways round at most half a shard slower."""
    over = 0.5 if two_way else 1.0  # both directions at once
    total = (chips - 1) * over
    loop = Loop("a/gather", "all-gather", two_way, chips, ())
    found = chips * product + total - hidden_seconds(loop, total, chips * product)
    right = simulated(chips, two_way, 1.0, product)
    assert right - 1e-12 <= found <= right + 0.5 + 1e-12
    if not two_way:
        assert found == pytest.approx(right)


def test_a_ring_of_one_sends_and_hides_nothing():
    for two_way in (False, True):
        loop = Loop("a/gather", "all-gather", two_way, 1, ())
        assert messages(1, 4, two_way) == steps(loop) == hidden_seconds(loop, 0.0, 5.0) == 0


def test_counts_of_arrays_are_those_of_numbers():
    chips = np.array([1.0, 2.0, 3.0, 4.0, 8.0])
    for two_way in (False, True):
        found = messages(chips, 3, two_way)
        assert found.tolist() == [messages(int(k), 3, two_way) for k in chips]
        many = hidden_seconds(Loop("a", "all-gather", two_way, chips, ()), 7.0, 3.0)
        each = [hidden_seconds(Loop("a", "all-gather", two_way, int(k), ()), 7.0, 3.0) for k in chips]
        assert many.tolist() == pytest.approx(each)
    assert messages(4, 1, two_way=True) == 3  # one entry has no halves
    assert messages(4, 2, two_way=True) == 4


def test_a_torus_ring_goes_along_one_axis_and_one_way_on_one_link():
    """6 bytes/s over 6 links of a chip: 1 each."""
    product = dot(0)
    for axes, chips in (("x", 4), ("xyz", 64)):
        for two_way, links in ((False, 1), (True, 2)):
            entry = looped(product, 12.0, chips, two_way, axes)
            assert transfer_seconds(entry, TORUS, profile()) == pytest.approx(12.0 / links)
    for two_way in (False, True):
        assert transfer_seconds(looped(product, 12.0, 8, two_way), SWITCH, profile()) == pytest.approx(2.0)


def test_every_step_pays_for_its_messages():
    given = profile(switch__message_seconds=1e-3, switch__hop_seconds=1e-4)
    for two_way, count in ((False, 7), (True, 4)):
        entry = looped(dot(0), 1.0, 8, two_way)
        assert message_seconds(entry, SWITCH, given) == pytest.approx(count * 1.1e-3)


def test_the_bound_is_that_of_the_collective_and_no_estimate_lies_below():
    product = dot(50.0)
    peaks = Peaks(100.0, 10.0, SWITCH)
    plain = Entry("layer", "all-gather", "", (), HERE, axes="x", sent_bytes=6.0, messages=1)
    for two_way in (False, True):
        entry = looped(product, 6.0, 8, two_way)
        least = bound(Ledger([product, entry]), peaks)
        assert least == bound(Ledger([product, plain]), peaks)
        found = estimate(Ledger([product, entry]), peaks, profile(matmul_share=0.5))
        assert found.hidden_seconds == pytest.approx(7 / 8 if not two_way else 1 / 8 + 2 / 4 + 1 / 7)
        assert found.step_seconds == max(2.0 - found.hidden_seconds, least.step_seconds)
        free = estimate(Ledger([product, entry]), peaks, profile())
        assert free.hidden_seconds > 0
        assert free.step_seconds == least.step_seconds == 1.5


def test_what_software_hides_is_its_share():
    product = dot(50.0)
    ledger = Ledger([product, looped(product, 6.0, 8, False)])
    peaks = Peaks(100.0, 10.0, SWITCH)
    for share in (0.0, 0.5, 1.0):
        found = estimate(ledger, peaks, profile(matmul_share=0.25, looped_share=share, hidden_share=0.9))
        assert found.hidden_seconds == pytest.approx(share * 1.0)  # all of it, at best


def made(overlap: Mapping[str, Way]) -> Ledger:
    """Two products: one as long as its gather, one too short to hide the start of a message behind."""
    entries = []
    for name, flops, sent in (("long", 80.0, 4.8), ("short", 0.8, 0.048)):
        product = replace(dot(flops), scope=name)
        way = overlap.get(f"{name}/gather", overlap.get("gather", "none"))
        entries.append(product)
        if way == "none":
            entries.append(Entry("layer", "all-gather", "", (), HERE, axes="x", sent_bytes=sent, messages=1))
        else:
            entries.append(looped(product, sent, 8, way == "two-way", name=name))
    return Ledger(entries)


def test_an_operation_is_looped_where_the_estimate_gains():
    peaks = Peaks(1000.0, 10.0, SWITCH)

    def chosen(**constants: float) -> dict[str, Way]:
        given = profile(matmul_share=0.1, switch__share=0.5, **constants)
        return choose(made, lambda ledger: float(estimate(ledger, peaks, given).step_seconds))

    assert chosen(switch__message_seconds=0.005) == {"long/gather": "two-way"}  # four starts, not seven
    assert chosen() == {"long/gather": "one-way", "short/gather": "one-way"}
    assert chosen(switch__message_seconds=0.01, looped_share=0.0) == {}
    assert chosen(looped_share=0.0) == {}


def test_a_step_is_never_slower_for_what_is_chosen():
    """PaLM 540B on 64 TPU v4; and nothing is chosen where chips hide nothing, or have no profile."""
    model, cluster, mesh = catalogue_model("palm-540b"), parse_cluster("tpu-v4:4x4x4"), Mesh.of((4, 4, 4))
    known = cluster.profile
    assert known is not None
    roles = parse_layout("ws2d/batch", mesh.axes)
    storage, formats = plan_storage(model, mesh, roles, roles), Formats()
    none = Constant(value=0.0, fixed="given")
    blind = known.model_copy(update={"constants": {**known.constants, "looped_share": none}})
    for batch, queries, context in ((64, 1, 2048), (512, 1, 2048), (64, 2048, None)):
        workload = Workload(prompt=2048, output=64, batch=batch)
        setting = Setting(model, cluster, mesh, formats, workload)
        step = {"batch": batch, "queries": queries, "context": context}
        layout = resolve(roles, storage, mesh, batch, queries)
        chosen = overlap_for(setting, layout, **step)

        def seconds(
            overlap: Mapping[str, Way], setting: Setting = setting, layout: Layout = layout, step: dict = step
        ) -> StepEstimate:
            run_options = RunOptions(overlap_of(overlap))
            priced = price_step(model, layout, mesh.size, formats, run_options=run_options, **step)
            return estimate(priced.ledger, setting.peaks, known)

        plain, best = seconds({}), seconds(chosen)
        assert best.device_seconds < plain.device_seconds
        assert best.least_seconds == pytest.approx(plain.least_seconds)
        assert best.device_seconds >= plain.least_seconds
        assert all(
            seconds({name: way}).device_seconds <= plain.device_seconds for name, way in chosen.items()
        )
        for profile in (blind, None):
            other = replace(setting, cluster=cluster.model_copy(update={"profile": profile}))
            assert overlap_for(other, layout, **step) == {}
