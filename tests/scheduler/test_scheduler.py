"""Steps counted by hand: what each policy reads and decodes, who is preempted, who is next."""

import cProfile
import pstats

import pytest

from partita.errors import InputError
from partita.scheduler import (
    POLICIES,
    Capacity,
    Pace,
    Policy,
    Request,
    Scheduler,
    Switching,
    parse_policy,
)


def served(policy: Policy, requests: list[Request], **capacity) -> list[tuple[list[tuple[int, int]], int]]:
    """All steps until everybody is served: (number, tokens) of the reads, and sequences decoded."""
    scheduler = Scheduler(Capacity(**capacity), policy)
    for request in requests:
        scheduler.add(request)
    found = []
    while step := scheduler.schedule():
        found.append(([(read.request.number, read.tokens) for read in step.reads], step.decode))
        scheduler.finish(step)
    assert all(request.state == "ended" and request.reason == "length" for request in requests)
    return found


def requests(*sizes: tuple[int, int]) -> list[Request]:
    return [Request(number, prompt, output) for number, (prompt, output) in enumerate(sizes)]


def test_decode_first_fills_a_step_with_chunks_of_prompts():
    policy = Policy(name="p", budget=10)
    # 6 and 4 of 9 tokens; then the one that runs has a token of the 10, so the rest, 5, and no more is there
    assert served(policy, requests((6, 3), (9, 2)), slots=2) == [
        ([(0, 6), (1, 4)], 0),
        ([(1, 5)], 1),
        ([], 2),
    ]


def test_prefill_first_holds_up_sequences():
    policy = Policy(name="p", budget=10, first="prefill", together=False)
    assert served(policy, requests((6, 3), (9, 2)), slots=2) == [
        ([(0, 6), (1, 4)], 0),
        ([(1, 5)], 0),
        ([], 2),
        ([], 1),
    ]


def test_whole_prompts_are_read_beside_decode_where_they_fit():
    policy = Policy(name="p", budget=10, chunked=False, reserve="whole")
    assert served(policy, requests((6, 3), (9, 2), (12, 1)), slots=3) == [
        ([(0, 6)], 0),
        ([(1, 9)], 1),
        ([(2, 12)], 2),  # longer than the budget: alone
    ]


def test_static_batching_is_a_policy_too():
    policy = Policy(name="p", budget=10, together=False)
    assert served(policy, requests((4, 2), (4, 3), (4, 2)), slots=2) == [
        ([(0, 4), (1, 4)], 0),
        ([], 2),
        ([], 1),
        ([(2, 4)], 0),
        ([], 1),
    ]


def test_chunks_and_readers_are_limited():
    policy = Policy(name="p", budget=16, chunk=4, quantum=4, readers=2)
    assert served(policy, requests((6, 1), (9, 1), (3, 1)), slots=3) == [
        ([(0, 4), (1, 4)], 0),
        ([(0, 2), (1, 4)], 0),
        ([(1, 1), (2, 3)], 0),
    ]


def test_the_last_who_came_is_preempted_and_keeps_its_place():
    # 4 blocks of 2 tokens; both have 3 tokens, 2 blocks each. The first decode step fills the second blocks;
    # for the next one each wants a third, so the younger goes, and reads its 3 + 2 tokens again
    scheduler = Scheduler(Capacity(slots=2, blocks=4, block=2), Policy(name="p", budget=10, watermark=0.0))
    first, second, third = requests((3, 4), (3, 4), (1, 1))
    for each in (first, second, third):
        scheduler.add(each)
    steps = []
    while step := scheduler.schedule():
        steps.append(
            (
                [(r.request.number, r.tokens) for r in step.reads],
                step.decode,
                [r.number for r in step.preempted],
            )
        )
        scheduler.finish(step)
    assert steps == [
        ([(0, 3), (1, 3)], 0, []),
        ([], 2, []),  # the third waits for a slot
        ([], 1, [1]),  # memory for 5 more tokens is not there, and the third does not pass
        ([], 1, []),
        ([(1, 5), (2, 1)], 0, []),
        ([], 1, []),
    ]
    assert (second.preemptions, scheduler.preemptions) == (1, 1)
    assert scheduler.written(second.sequences[0]) == 4


def test_a_shared_prefix_is_read_once():
    scheduler = Scheduler(
        Capacity(slots=16, blocks=1000, block=16), Policy(name="p", budget=256, watermark=0.0)
    )
    shared = [("prefix", i) for i in range(62)]  # 992 of the 1,000 tokens are full blocks
    each = [Request(i, 1010, 4, blocks=[*shared, ("own", i)]) for i in range(16)]
    for request in each:
        scheduler.add(request)
    read, begun = 0, 0
    while step := scheduler.schedule():
        read += step.read_tokens
        begun += sum(item.start == item.request.reused for item in step.reads)
        scheduler.finish(step)
    assert begun == 16
    assert [request.reused for request in each] == [0] + [992] * 15
    assert read == 1010 + 15 * 18
    assert scheduler.reused == 15 * 992
    assert scheduler.memory.used_blocks == 0
    assert scheduler.memory.cached_blocks == 62 + 16  # what can be reused, each one once


def test_what_was_used_longest_ago_is_evicted_first_and_from_its_end():
    scheduler = Scheduler(Capacity(slots=1, blocks=4, block=2), Policy(name="p", watermark=0.0))

    def serve(number: int, prompt: int, blocks: list) -> list:
        request = Request(number, prompt, 1, blocks=blocks)
        scheduler.add(request)
        step = scheduler.schedule()
        scheduler.finish(step)
        return [request.reused, *step.evicted]

    assert serve(0, 5, ["a", "b"]) == [0]
    assert serve(1, 3, ["c"]) == [0]  # 2 blocks of its own, a and b stay
    assert serve(2, 5, ["a", "d"]) == [2, "b"]  # a, 2 of its own: b goes, which was used before c
    assert serve(3, 3, ["c"]) == [2]


def test_written_tokens_can_be_reused_by_the_next_turn():
    scheduler = Scheduler(Capacity(slots=1, blocks=8, block=2), Policy(name="p", watermark=0.0))
    first = Request(0, 3, 4, blocks=["a"])
    scheduler.add(first)
    while step := scheduler.schedule():
        if scheduler.written(first.sequences[0]) == 3:
            first.blocks += ["b", "c"]  # tokens 3 to 6, of which the last two were written by now
        scheduler.finish(step)
    second = Request(1, 9, 1, blocks=["a", "b", "c", "d"])
    scheduler.add(second)
    scheduler.schedule()
    assert second.reused == 6


def test_samples_share_full_blocks_of_their_prompt():
    # 5 tokens of 2 to a block: 2 shared, and for each of 3 samples a third block, which takes a token more
    scheduler = Scheduler(Capacity(slots=3, blocks=9, block=2), Policy(name="p", watermark=0.0))
    request = Request(0, 5, 3, samples=3)
    scheduler.add(request)
    used = []
    while step := scheduler.schedule():
        used.append(scheduler.memory.used_blocks)
        scheduler.finish(step)
    assert used == [5, 5, 5]
    assert scheduler.memory.used_blocks == 0
    with pytest.raises(InputError, match=r"context.*18 tokens"):
        scheduler.add(Request(1, 5, 7, samples=3))


def test_a_request_goes_to_the_shard_that_has_its_prompt_then_to_the_emptiest():
    scheduler = Scheduler(Capacity(slots=4, blocks=9, block=2, shards=2), Policy(name="p"))
    first = Request(0, 4, 9, blocks=["a", "b"])
    scheduler.add(first)
    scheduler.finish(scheduler.schedule())
    again, other = Request(1, 5, 2, blocks=["a", "b"]), Request(2, 5, 2)
    scheduler.add(again)
    scheduler.add(other)
    scheduler.schedule()
    assert [first.shard, again.shard, other.shard] == [0, 0, 1]
    assert [request.sequences[0].slot for request in (first, again, other)] == [0, 1, 2]


def test_keys_have_equal_shares_whatever_they_send():
    scheduler = Scheduler(Capacity(slots=2), Policy(name="p", budget=20))
    many = [Request(i, 10, 5, key="many") for i in range(60)]
    few = [Request(100 + i, 20, 10, key="few") for i in range(15)]  # twice the tokens of the others
    for request in [*many, *few]:
        scheduler.add(request)
    while any(request.state == "waiting" for request in few):
        scheduler.finish(scheduler.schedule())
    begun = sum(request.state != "waiting" for request in many)
    assert 29 <= begun <= 33  # for 15 of twice the size; within what is in the two slots


def test_who_was_idle_saves_nothing_up():
    scheduler = Scheduler(Capacity(slots=1), Policy(name="p", budget=20))
    scheduler.add(Request(0, 5, 1, key="late"))
    for i in range(50):
        scheduler.add(Request(1 + i, 5, 1, key="busy"))
    for _ in range(30):
        scheduler.finish(scheduler.schedule())
    late = [Request(100 + i, 5, 1, key="late") for i in range(20)]
    for request in late:
        scheduler.add(request)
    for _ in range(20):
        scheduler.finish(scheduler.schedule())
    assert 9 <= sum(request.state == "ended" for request in late) <= 11


def test_a_smaller_priority_goes_first():
    order = []
    scheduler = Scheduler(Capacity(slots=1), Policy(name="p"))
    for number, priority in enumerate((1, 0, 1, 0)):
        scheduler.add(Request(number, 5, 1, priority=priority))
    while step := scheduler.schedule():
        order += [read.request.number for read in step.reads]
        scheduler.finish(step)
    assert order == [1, 3, 0, 2]


def test_sequences_stop_by_themselves_and_drafts_come_on_top():
    scheduler = Scheduler(Capacity(slots=2, blocks=16, block=4, ahead=3), Policy(name="p"))
    request = Request(0, 3, 20, samples=2)
    scheduler.add(request)
    scheduler.finish(scheduler.schedule())
    a, b = request.sequences
    began, over = scheduler.finish(scheduler.schedule(), extra={a: 2})
    assert (scheduler.written(a), scheduler.written(b), began, over) == (4, 2, [], [])
    assert scheduler.memory.used_blocks == 3  # 6 tokens of a, 4 of b
    assert scheduler.finish(scheduler.schedule(), ended=[a]) == ([], [a])
    assert (a.written, a.ended, request.state, scheduler.memory.used_slots) == (5, True, "running", 1)
    while step := scheduler.schedule():
        scheduler.finish(step)
    assert (b.written, request.state, request.reason) == (20, "ended", "length")


def test_a_deadline_ends_what_waits_reads_or_runs():
    scheduler = Scheduler(Capacity(slots=2), Policy(name="p", budget=8))
    runs, reads, waits = (Request(i, 4 + 20 * (i == 1), 9, deadline=5.0) for i in range(3))
    for request in (runs, reads, waits):
        scheduler.add(request)
    scheduler.finish(scheduler.schedule(0.0))
    assert [r.state for r in (runs, reads, waits)] == ["running", "reading", "waiting"]
    assert (scheduler.wakes(0.0), scheduler.expire(4.9)) == (5.0, [])
    assert scheduler.expire(5.0) == [runs, reads, waits]
    assert {r.reason for r in (runs, reads, waits)} == {"deadline"}
    assert (scheduler.memory.used_slots, scheduler.queue.waiting, bool(scheduler.schedule())) == (0, 0, False)


def test_prompts_get_what_the_limit_on_the_time_between_tokens_leaves_until_they_are_due():
    pace = Pace(tokens=lambda sequences, cached: 3, max_ttft=10.0)
    scheduler = Scheduler(Capacity(slots=2), Policy(name="p", budget=20, paced=True), pace)
    scheduler.add(Request(0, 8, 50))
    scheduler.finish(scheduler.schedule(0.0))  # nobody runs: no limit to keep
    scheduler.add(Request(1, 25, 1, arrival=1.0))
    found = []
    for now in (1.0, 2.0, 6.0):
        step = scheduler.schedule(now)
        found.append([read.tokens for read in step.reads])
        scheduler.finish(step)
    assert found == [[3], [3], [19]]


def test_a_layout_is_left_once_the_missed_savings_pay_for_the_move():
    # layout 1 saves 2 s a step from 3 sequences on, layout 0 saves 1 s below; a move costs 5 s
    switching = Switching(lambda n, cached: (10.0, 8.0) if n >= 3 else (10.0, 11.0), lambda *_: 5.0)
    moves = []
    for sequences in [3, 3, 3, 3, 1, 3]:
        moves.append(switching.choose(sequences, 0))
        switching.went(1)
    assert moves == [False, False, False, True, False, False]  # 6 s were missed after three steps
    assert (switching.layout, switching.moves) == (1, 1)
    to_and_fro = Switching(lambda n, cached: (10.0, 8.0) if n >= 3 else (10.0, 11.0), lambda *_: 5.0)
    for sequences in [3, 1, 1, 3, 1, 1] * 20:
        to_and_fro.choose(sequences, 0)
        to_and_fro.went(1)
    assert to_and_fro.moves == 0
    leap = Switching(lambda n, cached: (10.0, 8.0), lambda *_: 5.0)
    leap.choose(3, 0)
    assert leap.steps() == 3
    leap.went(3)
    assert leap.choose(3, 0)


@pytest.mark.parametrize("slots", [256, 4096])
def test_a_step_costs_no_more_calls_however_many_wait(slots: int):
    def calls(waiting: int) -> int:
        scheduler = Scheduler(Capacity(slots=slots, blocks=slots * 64), Policy(name="p", budget=slots * 65))
        for number in range(slots + waiting):
            scheduler.add(Request(number, 64, 1000, key=number % 7))
        for _ in range(3):
            scheduler.finish(scheduler.schedule())
        assert len(scheduler.running) == slots
        profile = cProfile.Profile()
        profile.enable()
        scheduler.finish(scheduler.schedule())
        profile.disable()
        return int(pstats.Stats(profile).total_calls)  # pyright: ignore[reportAttributeAccessIssue]

    few, many = calls(10), calls(20_000)
    assert many <= few < 100


def test_policies_are_named_and_take_a_budget():
    assert parse_policy("mixed") is POLICIES["mixed"]
    assert parse_policy("decode-first:2048").budget == 2048
    for text in ("vllm", "mixed:", "mixed:-1", "mixed:0"):
        with pytest.raises(InputError, match="policy"):
            parse_policy(text)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("prompt", lambda: Request(0, 0, 1)),
        ("output", lambda: Request(0, 1, 0)),
        ("prefix", lambda: Request(0, 4, 1, prefix=4)),
        ("slots", lambda: Capacity(slots=3, shards=2)),
        ("blocks", lambda: Capacity(slots=3, blocks=0)),
        ("budget", lambda: Policy(name="p", budget=0)),
        ("budget", lambda: Scheduler(Capacity(slots=9), Policy(name="p", budget=8))),
        ("watermark", lambda: Policy(name="p", watermark=1.0)),
        ("context", lambda: Scheduler(Capacity(slots=1, tokens=8), Policy(name="p")).add(Request(0, 5, 5))),
        ("samples", lambda: Scheduler(Capacity(slots=1), Policy(name="p")).add(Request(0, 5, 5, samples=2))),
    ],
)
def test_what_is_out_of_range_is_refused(field: str, wrong):
    with pytest.raises(InputError) as error:
        wrong()
    assert error.value.field == field
