"""The loop: what is written beside others is what is written alone, and nothing is left of what has ended."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from tests.engine.asking import MODEL, prompt, request
from tests.server.serving import CONTEXT, SLOTS, Asked, alone, quiet, small_engine, started

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.engine import Engine, EngineOptions
from partita.engine.prefixes import BLOCK
from partita.engine.shapes import Capacity
from partita.errors import InputError, NotFiniteError
from partita.server.generation import Busy, Failed, Stopping, TimedOut
from partita.server.loop import EngineLoop, Limits
from partita.sharding import Mesh, parse_layout
from partita.specs.model import DynamicScaling
from partita.specs.sampling import Sampling

LONG = Sampling(max_tokens=50, ignore_eos=True)


@pytest.fixture(scope="module")
def loop() -> Iterator[EngineLoop]:
    found = started(small_engine())
    yield found
    found.stop()
    assert found.join(60)


def test_texts_are_those_that_are_written_alone(loop: EngineLoop):
    random, compiled = np.random.default_rng(3), []

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(about.get("fun_name"))

    asked = []
    for kind in ["greedy", "sampled", "wide", "full"] * 8:
        ask = request(random, kind, n=int(random.integers(1, 4)))
        asked.append((prompt(random, int(random.integers(1, CONTEXT - ask.max_tokens))), ask))
    jax.monitoring.register_event_duration_secs_listener(listen)
    found = [Asked(loop, *each) for each in asked]
    texts = [each.wait() for each in found]
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled  # all was there before it was ready
    quiet(loop)
    for (ids, ask), text in zip(asked, texts, strict=True):
        assert text == alone(loop.engine, ids, ask)


def test_prompts_that_begin_alike_are_read_once(loop: EngineLoop):
    loop.prefixes.clear()
    random = np.random.default_rng(4)
    shared, ask = prompt(random, 2 * BLOCK + 3), Sampling(max_tokens=5)
    prompts = [shared + prompt(random, 4) for _ in range(2 * SLOTS)]
    found = [Asked(loop, ids, ask) for ids in prompts]
    texts = [each.wait() for each in found]
    assert [each.generation.reused for each in found] == [0] + [2 * BLOCK] * (2 * SLOTS - 1)
    for ids, text in zip(prompts, texts, strict=True):
        assert text == alone(loop.engine, ids, ask)
    again = Asked(loop, prompts[0], ask)
    assert again.wait() == texts[0]
    assert again.generation.reused == 2 * BLOCK
    assert len(loop.prefixes) == 1  # no other has a whole block of its own


def test_keys_that_are_turned_by_the_length_of_the_prompt_are_not_reused():
    scaling = DynamicScaling(kind="dynamic", factor=3.0, original_max_position=10)
    model = MODEL.model_copy(update={"rotary_scaling": scaling})
    checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=5))
    roles = parse_layout("ws1d/heads", "x")
    options = EngineOptions(capacity=Capacity(SLOTS, CONTEXT), draft="off")
    found = EngineLoop(Engine(checkpoint, Mesh("x", (1,)), roles, roles, options=options))
    assert found.prefixes.most == 0


def test_what_is_cancelled_leaves_nothing(loop: EngineLoop):
    found = [Asked(loop, [1, 2, 3], LONG) for _ in range(3 * SLOTS)]  # running, being read, in the queue
    found[0].began.wait(60)
    for each in found:
        loop.cancel(each.generation)
    quiet(loop)
    assert Asked(loop, [1, 2, 3], LONG).wait() == alone(loop.engine, [1, 2, 3], LONG)
    loop.cancel(found[0].generation)  # once more, and too late
    quiet(loop)


def test_limits_to_the_token(loop: EngineLoop):
    ids = [5] * 30
    for tokens in (CONTEXT - 31, CONTEXT - 30):
        ask = Sampling(max_tokens=tokens, ignore_eos=True)
        assert len(Asked(loop, ids, ask).wait()[0][1]) == tokens
    with pytest.raises(InputError, match=f"exceeds the {CONTEXT} tokens served"):
        Asked(loop, ids, Sampling(max_tokens=CONTEXT - 29))
    with pytest.raises(InputError, match="at most 4 samples"):
        Asked(loop, ids, Sampling(n=SLOTS + 1, max_tokens=1))


def test_a_smaller_priority_goes_first(loop: EngineLoop):
    before = [Asked(loop, [7] * 9, LONG) for _ in range(SLOTS)]
    before[-1].began.wait(60)
    last = [Asked(loop, [8] * 9, Sampling(max_tokens=1), priority=1) for _ in range(3)]
    urgent = Asked(loop, [9] * 9, Sampling(max_tokens=1), priority=-1)
    for each in (*before, *last, urgent):
        each.wait()
    assert urgent.generation.first <= min(each.generation.first for each in last)


def test_a_step_that_fails_is_told_and_the_loop_goes_on(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch):
    right = alone(loop.engine, [1, 2, 3], LONG)
    with monkeypatch.context() as broken:
        broken.setattr(type(loop.slots), "step", lambda self, masks: 1 / 0)
        with pytest.raises(Failed, match="ZeroDivisionError"):
            Asked(loop, [1, 2, 3], LONG).wait()
    assert Asked(loop, [1, 2, 3], LONG).wait() == right
    quiet(loop)


def test_logits_that_are_not_finite_end_their_request_alone(loop: EngineLoop):
    right, parameters = Asked(loop, [1, 2, 3], LONG).wait(), loop.slots.parameters
    name = next(name for name in parameters if "norm" in name)
    quiet(loop)
    loop.slots.parameters = {**parameters, name: parameters[name] * np.float32(np.inf)}
    loop.prefixes.clear()
    with pytest.raises(NotFiniteError, match="became infinite"):
        Asked(loop, [1, 2, 3], LONG).wait()
    loop.slots.parameters = parameters
    loop.prefixes.clear()
    assert Asked(loop, [1, 2, 3], LONG).wait() == right
    quiet(loop)


def test_a_full_queue_a_deadline_and_the_end(loop: EngineLoop):
    own = started(loop.engine, Limits(queue=2, prefixes=0))
    first = [Asked(own, [1, 2, 3], LONG) for _ in range(2)]
    for each in first:
        each.began.wait(60)
    more = []

    def ask_on() -> None:
        for _ in range(SLOTS + 40):
            more.append(Asked(own, [4, 5], LONG))

    with pytest.raises(Busy) as refused:
        ask_on()
    assert 1 <= refused.value.seconds <= 60
    own.stop()
    with pytest.raises(Stopping):
        Asked(own, [1], LONG)
    for each in (*first, *more):  # what was taken on is ended
        assert len(each.wait()[0][1]) == LONG.max_tokens
    assert own.join(60)

    late = started(loop.engine, Limits(seconds=1e-4))
    with pytest.raises(TimedOut):
        Asked(late, [1, 2, 3], LONG).wait()
    late.stop()
    assert late.join(60)
    assert late.scheduler.memory.used_slots == 0
