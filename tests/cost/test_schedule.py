"""The formulas of a pipeline, against simulations that know nothing of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.schedule import (
    decode_seconds,
    divided_microbatches,
    flow_seconds,
    microbatches,
    prefill_seconds,
)

SECONDS = st.floats(0.01, 100)
STAGES = st.lists(SECONDS, min_size=1, max_size=6)


def finished(stages: list[list[float]], hops: list[float]) -> float:
    """Jobs in order, each stage and each link one at a time: event by event."""
    free = [0.0] * (2 * len(stages) - 1)
    for job, hop in enumerate(hops):
        ready = 0.0
        for machine in range(len(free)):
            taken = hop if machine % 2 else stages[machine // 2][job]
            ready = free[machine] = max(ready, free[machine]) + taken
    return free[-1]


def rounds(stages: list[float], hop: float, count: int, steps: int) -> list[float]:
    """When each decode step's last microbatch leaves the last stage; the next token waits for its last."""
    free = [0.0] * (2 * len(stages) - 1)
    left = [0.0] * count
    ends = []
    for _ in range(steps):
        for job in range(count):
            ready = left[job]
            for machine in range(len(free)):
                taken = hop if machine % 2 else stages[machine // 2]
                ready = free[machine] = max(ready, free[machine]) + taken
            left[job] = ready
        ends.append(max(left))
    return ends


@given(stages=STAGES, hop=SECONDS, count=st.integers(1, 8))
def test_equal_microbatches_fill_and_drain_the_pipeline(stages: list[float], hop: float, count: int):
    simulated = finished([[t] * count for t in stages], [hop] * count)
    assert prefill_seconds(stages, hop, count) == pytest.approx(simulated)
    jobs = [np.full(count, t) for t in stages]
    assert flow_seconds(jobs, np.full(count, hop)) == pytest.approx(simulated)


@given(data=st.data(), stages=st.integers(1, 5), jobs=st.integers(1, 8))
def test_jobs_of_different_lengths_flow_in_order(data: st.DataObject, stages: int, jobs: int):
    times = st.lists(SECONDS, min_size=jobs, max_size=jobs)
    taken, hops = [data.draw(times) for _ in range(stages)], data.draw(times)
    found = flow_seconds([np.array(t) for t in taken], np.array(hops))
    assert found == pytest.approx(finished(taken, hops))


@given(stages=STAGES, hop=SECONDS, data=st.data())
def test_decode_settles_to_one_round_a_step(stages: list[float], hop: float, data: st.DataObject):
    count = data.draw(st.integers(1, len(stages)))
    ends = rounds(stages, hop, count, 60)
    assert decode_seconds(stages, hop, count) == pytest.approx((ends[-1] - ends[19]) / 40)


def test_even_stages_have_the_closed_forms_of_the_bubble():
    """S stages of t, m microbatches: (m + S - 1) t and S t, beside the S - 1 hops."""
    stages, t, hop = 4, 3.0, 0.5
    assert prefill_seconds([t] * stages, hop, 8) == (8 + stages - 1) * t + (stages - 1) * hop
    assert decode_seconds([t] * stages, hop, stages) == stages * t + (stages - 1) * hop
    assert decode_seconds([t] * stages, 0, 1) == stages * t  # one sequence visits every stage
    assert decode_seconds([t] * stages, 5.0, stages) == stages * t + (stages - 1) * 5.0
    assert decode_seconds([t, t], 9.0, 2) == 18.0  # the link is the slowest, and busy all the time


def test_one_stage_is_no_pipeline():
    for count in (1, 3):
        assert decode_seconds([2.5], 7.0, count) == prefill_seconds([2.5], 7.0, count) == 2.5 * count


def test_arrays_of_candidates_are_each_priced_alone():
    first, second = np.array([1.0, 5.0, 2.0]), np.array([[4.0], [1.0]])
    hop, count = np.array([0.1, 0.2, 3.0]), np.array([1, 2, 2])
    for formula in (decode_seconds, prefill_seconds):
        many = np.asarray(formula([first, second], hop, count))
        assert many.shape == (2, 3)
        for row in range(2):
            for column in range(3):
                alone = formula([first[column], second[row, 0]], hop[column], count[column])
                assert many[row, column] == alone


@pytest.mark.parametrize(
    ("batch", "stages", "expected"),
    [(1, 1, (1, 1)), (7, 1, (1, 7)), (1, 4, (1, 1)), (3, 4, (3, 1)), (4, 4, (4, 1)), (9, 4, (4, 3))],
)
def test_a_batch_is_cut_in_one_microbatch_a_stage(batch: int, stages: int, expected: tuple[int, int]):
    assert microbatches(batch, stages) == expected
    count, size = microbatches(40, stages)
    assert count * size >= 40


@pytest.mark.parametrize(
    ("batch", "stages", "queries", "most", "expected"),
    [
        (6, 3, 1, 2048, (3, 2)),  # the stages divide it
        (8, 3, 1, 2048, (1, 8)),  # they do not
        (128, 3, 20, 2048, (2, 64)),  # 2,560 tokens are halved once
        (256, 3, 20, 2048, (4, 64)),
        (9, 2, 1000, 2048, (1, 9)),  # odd: not halved
        (256, 1, 20, 2048, (1, 256)),  # one stage
    ],
)
def test_a_runtime_that_never_pads_cuts_a_batch_where_it_divides(
    batch: int, stages: int, queries: int, most: int, expected: tuple[int, int]
):
    count, size = divided_microbatches(batch, stages, queries, most)
    assert (count, size) == expected
    assert count * size == batch
