"""Loads whose times can be counted by hand, with steps that take round seconds; and what the model's take."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import InputError
from partita.scheduler import POLICIES, Capacity, Policy, Scheduler
from partita.simulation import Limits, Load, Result, Simulated, closed_loop, drawn, open_loop, simulate
from partita.simulation.closed import closed_steps
from partita.specs.traffic import Traffic, parse_lengths


class Round:
    """Steps of round seconds in place of a cost model's: reading takes `token` for each token, decode `step`
    and `attend` for each token that is attended to."""

    moves = False

    def __init__(self, token: float = 0.25, step: float = 1.0, attend: float = 0.0):
        self.token, self.base, self.attend = token, step, attend
        self.layouts = [self.decode]

    def decode(self, sequences: int, attended: float) -> float:
        return self.base + self.attend * attended

    def read(self, portions) -> float:
        return self.token * sum(tokens for tokens, _ in portions)

    def step(self, portions, sequences: int, attended: float, fused: bool, layout: int = 0) -> float:
        seconds = self.read(portions) if portions else 0.0
        return seconds + self.decode(sequences, attended) if sequences else seconds

    def tokens_within(self, seconds: float, sequences: int, attended: int, fused: bool) -> int:
        return max(0, math.floor((seconds - self.decode(sequences, attended)) / self.token))


def server(prices: Round, limits: Limits | None = None, **capacity) -> Simulated:
    return Simulated(Capacity(**capacity), prices, limits or Limits())  # pyright: ignore[reportArgumentType]


def load(prompt, output, arrival) -> Load:
    size = len(arrival)
    return Load(
        np.full(size, prompt), np.full(size, output), np.zeros(size, np.int64), np.array(arrival, float)
    )


def gaps(found: Result) -> Counter[float]:
    """How many gaps between tokens there were of so many seconds."""
    total: Counter[float] = Counter()
    for seconds, count in zip(*found.itl, strict=True):
        total[round(seconds, 9)] += count
    return total


def starts(sent: Load) -> np.ndarray:
    assert sent.arrival is not None
    return sent.arrival


POLICY = Policy(name="p", budget=1000, fused=False)


def test_one_request_alone_takes_its_prompt_and_a_step_for_each_token_but_the_first():
    found = simulate(server(Round(attend=0.01), slots=1), POLICY, load(8, 5, [3.0]))
    # 8 x 0.25 s; then 4 steps of 1 s and 0.01 s for 9, 10, 11, 12 tokens
    assert found.ttft.tolist() == [2.0]
    assert found.e2e == pytest.approx([2.0 + 4 + 0.01 * (9 + 10 + 11 + 12)])
    assert found.tpot == pytest.approx([1 + 0.01 * 10.5])
    assert found.seconds == found.e2e[0]
    assert found.busy_share == pytest.approx(1 - 3 / (3 + found.seconds))  # nobody is there for 3 s


def test_what_comes_during_a_step_is_seen_at_its_end():
    # the second comes at 2.3 s, in the step from 2 to 3: it is read with the step from 3 to 4 + 2 s
    found = simulate(server(Round(), slots=2), POLICY, load(8, 5, [0.0, 2.3]))
    assert found.ttft == pytest.approx([2.0, 6.0 - 2.3])
    assert found.e2e == pytest.approx([2 + 4 + 2.0, 10.0 - 2.3])
    assert gaps(found) == {1.0: 7, 3.0: 1}


def test_a_step_whose_prompt_holds_others_up_is_a_gap_of_theirs():
    held = Policy(name="p", budget=1000, first="prefill", together=False, fused=False)
    found = simulate(server(Round(), slots=2), held, load(8, 3, [0.0, 2.5]))
    # read 0-2, decode 2-3, read the second 3-5, both decode 5-6, the second alone 6-7
    assert found.e2e == pytest.approx([6.0, 7.0 - 2.5])
    assert gaps(found) == {1.0: 3, 3.0: 1}


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_a_closed_loop_without_queueing_is_what_arithmetic_says(clients: int):
    """All clients in step: each wave reads its prompts together, then writes."""
    sent = Load(*(np.full(8 * clients, n) for n in (8, 5, 0)), arrival=None, clients=clients)
    found = simulate(server(Round(), slots=clients), POLICY, sent)
    read = 0.25 * 8 * clients
    assert found.ttft == pytest.approx(np.full(8 * clients, read))
    assert found.tpot == pytest.approx(np.full(8 * clients, 1.0))
    assert found.seconds == pytest.approx(8 * (read + 4.0))
    assert found.requests_per_second == pytest.approx(clients / (read + 4))
    assert found.output_tokens_per_second == pytest.approx(5 * clients / (read + 4))
    assert found.series.mean("slots") == pytest.approx(clients)


def test_clients_beyond_the_slots_wait_for_their_turn():
    # 3 clients, 1 slot, a request takes 2 + 4 s: each waits for the two others
    sent = Load(*(np.full(30, n) for n in (8, 5, 0)), arrival=None, clients=3)
    found = simulate(server(Round(), slots=1), POLICY, sent, skip=3)
    assert found.ttft == pytest.approx(np.full(27, 12 + 2.0))
    # two wait as long as requests are left to be sent, then one for 6 s, then none
    assert found.series.mean("waiting") == pytest.approx((28 * 6 * 2 + 6) / 180)
    assert found.most_waiting == 2


def test_a_queue_with_regular_service_waits_as_pollaczek_and_khinchine_say():
    """One slot, Poisson arrivals, 6 s each: the mean wait is rho / (2 (1 - rho)) x 6 s; half of it at 0.5."""
    sent = open_loop(drawn(Traffic.of(8, 5), 20_000, 1), 0.5 / 6, seed=2)
    found = simulate(server(Round(), slots=1), POLICY, sent)
    waited = found.ttft.mean() - 2
    assert waited == pytest.approx(3.0, rel=0.05)
    assert found.busy_share == pytest.approx(0.5, rel=0.02)


def test_a_cached_prefix_is_not_read():
    sent = Load(np.array([8]), np.array([2]), np.array([6]), np.zeros(1))
    assert simulate(server(Round(), slots=1), POLICY, sent).ttft.tolist() == [0.5]


def test_goodput_counts_who_is_within_both_limits():
    found = simulate(server(Round(), slots=1), POLICY, load(8, 5, [0.0, 0.0, 0.0, 0.0]))
    assert found.ttft.tolist() == [2.0, 8.0, 14.0, 20.0]
    assert found.good(Limits()) == 1.0
    assert found.good(Limits(ttft=8.0)) == 0.5
    assert found.good(Limits(ttft=8.0, tpot=0.5)) == 0.0
    assert found.as_json(Limits(ttft=8.0))["goodput_requests_per_second"] == pytest.approx(2 / 24)
    assert found.percentiles()["ttft"] == {"mean": 11.0, "p50": 8.0, "p90": 20.0, "p95": 20.0, "p99": 20.0}


def test_a_limit_on_the_time_between_tokens_is_kept_while_a_long_prompt_is_read():
    both = Load(np.array([8, 400]), np.array([60, 2]), np.zeros(2, np.int64), np.array([0.0, 2.5]))
    free = simulate(server(Round(), Limits(tpot=3.0), slots=2), POLICY, both)
    kept = simulate(server(Round(), Limits(tpot=3.0), slots=2), replace(POLICY, paced=True), both)
    assert max(free.itl[0]) == pytest.approx(101.0)
    assert max(kept.itl[0]) == pytest.approx(3.0)
    assert kept.ttft[1] > free.ttft[1]


def test_outputs_of_one_token_have_no_time_between_tokens():
    found = simulate(server(Round(), slots=1), POLICY, load(8, 1, [0.0]))
    assert found.percentiles()["tpot"] is None
    assert found.percentiles()["itl"] is None
    assert found.good(Limits(tpot=1e-9)) == 1.0


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(0, 60)), min_size=1, max_size=25
    ),
    policy=st.sampled_from(sorted(POLICIES)),
    slots=st.integers(1, 5),
    attend=st.sampled_from([0.0, 0.003]),
    blocks=st.sampled_from([None, 20]),
)
@settings(max_examples=40, deadline=None)
def test_leaping_over_steps_gives_what_single_steps_give(requests, policy, slots, attend, blocks):
    """Against the same loop one step at a time; a leap takes the mean of its steps, exact where they grow
    evenly."""
    prompt, output, arrival = (
        np.array(column) for column in zip(*sorted(requests, key=lambda r: r[2]), strict=True)
    )
    sent = Load(prompt, output, np.zeros(len(prompt), np.int64), arrival)
    prices, capacity = Round(attend=attend), Capacity(slots=slots, blocks=blocks, block=4)
    found = simulate(Simulated(capacity, prices), POLICIES[policy], sent)  # pyright: ignore[reportArgumentType]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "steps", lambda self: 1)
        single = simulate(Simulated(capacity, prices), POLICIES[policy], sent)  # pyright: ignore[reportArgumentType]
    assert found.ttft == pytest.approx(single.ttft)
    assert found.e2e == pytest.approx(single.e2e)
    assert found.steps == single.steps
    assert found.itl[0] @ found.itl[1] == pytest.approx(single.itl[0] @ single.itl[1])
    assert found.itl[1].sum() == (output - 1).sum()
    assert found.series.mean("slots") == pytest.approx(single.series.mean("slots"), rel=1e-6)


def test_arrivals_are_as_asked():
    sent = drawn(Traffic.of(8, 5), 40_000, 3)
    poisson = np.diff(starts(open_loop(sent, 20.0, seed=4)))
    assert poisson.mean() == pytest.approx(0.05, rel=0.02)
    assert poisson.std() == pytest.approx(0.05, rel=0.03)
    bursts = np.diff(starts(open_loop(sent, 20.0, "gamma:0.25", seed=4)))
    assert (bursts.mean(), bursts.std()) == (pytest.approx(0.05, rel=0.03), pytest.approx(0.1, rel=0.05))
    assert np.diff(starts(open_loop(sent, 20.0, "even"))) == pytest.approx(0.05)
    for wrong in ("gamma", "gamma:0", "gamma:x", "normal"):
        with pytest.raises(InputError, match="arrivals"):
            open_loop(sent, 20.0, wrong)


def test_lengths_are_drawn_by_their_weights_and_the_same_seed_gives_the_same():
    traffic = Traffic.of(parse_lengths("10:3,20:1", "prompt"), 5)
    sent = drawn(traffic, 40_000, 5)
    assert (sent.prompt == 10).mean() == pytest.approx(0.75, abs=0.01)
    assert (drawn(traffic, 40_000, 5).prompt == sent.prompt).all()
    assert (drawn(traffic, 40_000, 6).prompt != sent.prompt).any()


def test_what_cannot_be_served_or_asked_is_refused():
    with pytest.raises(InputError, match="context"):
        simulate(server(Round(), slots=1, tokens=10), POLICY, load(8, 5, [0.0]))
    with pytest.raises(InputError, match="clients"):
        closed_loop(load(8, 5, [0.0]), 2)
    with pytest.raises(InputError, match="requests"):
        drawn(Traffic.of(8, 5), 0, 0)
    with pytest.raises(InputError, match="skip"):
        simulate(server(Round(), slots=1), POLICY, load(8, 5, [0.0]), skip=1)


@pytest.mark.parametrize("policy", ["decode-first", "prefill-first", "mixed"])
@pytest.mark.parametrize("slots", [3, 5])
def test_steps_of_a_closed_loop_are_timed_as_they_are_simulated(policy: str, slots: int):
    lengths = np.random.default_rng(7).integers(2, 40, (2, 60))
    sent = Load(lengths[0], lengths[1], np.zeros(60, np.int64), arrival=None, clients=5)
    held = Capacity(slots=slots, blocks=30, block=4)
    steps = closed_steps(held, POLICIES[policy], sent)
    for prices in (Round(), Round(0.1, 0.7, 0.003)):
        found = simulate(Simulated(held, prices), POLICIES[policy], sent)  # pyright: ignore[reportArgumentType]
        ttft, tpot = steps.times(prices)  # pyright: ignore[reportArgumentType]
        assert (ttft, tpot) == (pytest.approx(found.ttft.mean()), pytest.approx(found.tpot.mean()))
    assert len(steps.steps) < found.steps
