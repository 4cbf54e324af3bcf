"""The roofline on ledgers written by hand: what adds up, what hides behind what, and what limits a step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.ledger import Entry, Ledger
from partita.cost.links import Level, Links
from partita.cost.roofline import Peaks, bound, communication_seconds, peaks
from partita.errors import InputError
from partita.sharding import parse
from partita.specs import Formats, catalogue_chip


def apart(**bandwidths: float) -> Links:
    """Two chips on every axis, each axis on a level of its own with this bandwidth."""
    names = list(bandwidths)
    parts = {name: tuple(2 if i == j else 1 for j in range(len(names))) for i, name in enumerate(names)}
    return Links(tuple(Level(bandwidth) for bandwidth in bandwidths.values()), parts)


ONE = Peaks(flops=1.0, memory_bytes=1.0, links=apart(x=1.0, y=2.0, z=4.0))
B = parse("B")


def entry(**costs) -> Entry:
    return Entry("here", "all-gather" if "axes" in costs else "einsum", "", (B,), B, **costs)


def ledger(compute: float = 0, weights: float = 0, kv: float = 0, **links: float) -> Ledger:
    """One operation, then one collective for each group of axes; in units of ONE."""
    first = entry(flops=compute, needed_flops=compute, weight_bytes=weights, kv_bytes=kv)
    return Ledger([first, *(entry(axes=axes, sent_bytes=sent) for axes, sent in links.items())])


def test_parts_are_counts_over_peaks():
    found = bound(ledger(12, 6, 3, x=8, z=4), Peaks(4.0, 3.0, apart(x=2.0, z=0.5)))
    assert (found.compute_seconds, found.weight_seconds, found.kv_seconds) == (3, 2, 1)
    assert found.link_seconds == {"x": 4, "z": 8}
    assert (found.memory_seconds, found.communication_seconds) == (3, 12)


@pytest.mark.parametrize(
    ("costs", "step", "overlapped"),
    [
        ({"compute": 5, "weights": 2, "kv": 1, "x": 4}, 9, 5),
        ({"compute": 2, "weights": 2, "kv": 3, "x": 4}, 9, 5),
        ({"compute": 2, "weights": 2, "kv": 1, "x": 4, "y": 6}, 10, 7),
        ({"compute": 2}, 2, 2),
    ],
)
def test_communication_is_added_to_the_larger_of_compute_and_memory(
    costs: dict[str, float], step: float, overlapped: float
):
    found = bound(ledger(**costs), ONE)
    assert (found.step_seconds, found.overlapped_seconds) == (step, overlapped)


@pytest.mark.parametrize(
    ("costs", "binds"),
    [
        ({"compute": 5, "weights": 2, "kv": 2}, "compute"),
        ({"compute": 3, "weights": 2, "kv": 2}, "weights"),
        ({"compute": 3, "weights": 1, "kv": 3}, "kv"),
        ({"compute": 3, "weights": 1, "kv": 1, "x": 3}, "compute"),
        ({"compute": 3, "weights": 1, "kv": 1, "x": 2, "yz": 15}, "link:yz"),
        ({"compute": 3, "weights": 1, "kv": 1, "x": 4, "y": 6}, "link:x"),
        ({"compute": 1, "weights": 4, "kv": 1, "x": 4}, "weights"),
    ],
)
def test_the_largest_part_limits_a_step(costs: dict[str, float], binds: str):
    assert bound(ledger(**costs), ONE).binds == binds


def test_repeats_count():
    once = ledger(3, 5, 7, x=2, y=8)
    thrice = Ledger([replace(e, repeat=3) for e in once.entries])
    one, three = bound(once, ONE), bound(thrice, ONE)
    for part in ("compute_seconds", "weight_seconds", "kv_seconds", "communication_seconds"):
        assert getattr(three, part) == 3 * getattr(one, part) > 0


def test_what_a_causal_mask_throws_away_needs_no_time():
    assert bound(Ledger([entry(flops=8, needed_flops=5)]), ONE).compute_seconds == 5


def test_a_collective_is_as_fast_as_its_slowest_level():
    sent = entry(axes="zyx", sent_bytes=7, repeat=5)  # of 7 parts 1 over x, 2 over y and 4 over z; once
    assert communication_seconds(sent, ONE) == 1
    assert communication_seconds(replace(sent, axes="zy", sent_bytes=9), ONE) == 1.5


def test_candidates_are_priced_side_by_side():
    compute, kv, sent = np.array([1.0, 9.0]), np.array([4.0, 4.0]), np.array([2.0, 3.0])
    found = bound(Ledger([entry(needed_flops=compute, kv_bytes=kv), entry(axes="x", sent_bytes=sent)]), ONE)
    assert np.asarray(found.step_seconds).tolist() == [6, 12]
    assert np.asarray(found.overlapped_seconds).tolist() == [4, 9]


def test_peaks_are_those_of_the_chip_for_the_format_of_activations():
    links = apart(x=270e9)
    assert peaks(catalogue_chip("tpu-v4"), Formats(weights="int8"), links) == Peaks(275e12, 1.2e12, links)
    with pytest.raises(InputError, match=r"^activations: f32: tpu-v4 has no peak for it; it has bf16, int8$"):
        peaks(catalogue_chip("tpu-v4"), Formats(activations="f32"), links)


COSTS = st.floats(0, 1e15)
RATES = st.floats(1.0, 1e15)


@given(
    costs=st.fixed_dictionaries(dict.fromkeys(("compute", "weights", "kv", "x", "yz"), COSTS)),
    rates=st.tuples(*[RATES] * 5),
    faster=st.tuples(*[st.floats(1, 100)] * 5),
)
def test_a_faster_chip_is_never_slower(
    costs: dict[str, float], rates: tuple[float, ...], faster: tuple[float, ...]
):
    """Whatever is faster of it: matrices, memory or links."""
    slow = Peaks(rates[0], rates[1], apart(**dict(zip("xyz", rates[2:], strict=True))))
    rates = tuple(rate * factor for rate, factor in zip(rates, faster, strict=True))
    fast = Peaks(rates[0], rates[1], apart(**dict(zip("xyz", rates[2:], strict=True))))
    before, after = bound(ledger(**costs), slow), bound(ledger(**costs), fast)
    assert after.step_seconds <= before.step_seconds
    assert after.overlapped_seconds <= before.overlapped_seconds
    assert after.overlapped_seconds <= after.step_seconds
