"""Looped collective einsums in the ledger: what is sent, what is hidden, and which of them are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from partita.cost.collective_matmul import hidden_seconds, messages, steps
from partita.cost.estimate import estimate, message_seconds, transfer_seconds
from partita.cost.ledger import Entry, Ledger, Loop
from partita.cost.links import Level, Links
from partita.cost.roofline import Peaks, bound
from partita.sharding.spec import parse
from partita.specs import Constant, Profile

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
        assert np.asarray(found).tolist() == [messages(int(k), 3, two_way) for k in chips]
        many = hidden_seconds(Loop("a", "all-gather", two_way, chips, ()), 7.0, 3.0)
        each = [hidden_seconds(Loop("a", "all-gather", two_way, int(k), ()), 7.0, 3.0) for k in chips]
        assert np.asarray(many).tolist() == pytest.approx(each)
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
