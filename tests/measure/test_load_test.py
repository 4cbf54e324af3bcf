"""A load against a server that runs here: what was sent, counted and answered agrees on both sides."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.asking import MODEL
from tests.server.listening import listening
from tests.server.serving import quiet, served

from partita.errors import InputError
from partita.measure.load_test import Measured, Sent, Target, run_load
from partita.server.loop import Limits as Queue
from partita.server.service import Service
from partita.simulation import Load, closed_loop, drawn, open_loop, replay
from partita.simulation.result import Limits
from partita.specs.traffic import Traffic, parse_lengths


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served(Queue(queue=3)) as found:
        yield found


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with listening(service) as address:
        yield address


def counted(url: str, name: str) -> float:
    text = httpx.get(url.replace("/v1", "/metrics")).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return sum(s.value for s in samples if s.name == f"vllm:{name}_total")


def target(url: str, **more: object) -> Target:
    return Target(url, "tiny", key="secret", vocabulary=MODEL.vocabulary, **more)  # pyright: ignore[reportArgumentType]


def traffic() -> Traffic:
    return Traffic.of(parse_lengths("20,37", "prompt"), parse_lengths("1,5", "output"), 16)


def test_what_is_sent_is_what_the_server_counts(service: Service, url: str):
    load = closed_loop(drawn(traffic(), 12, seed=1), clients=3)
    names = ("prompt_tokens", "generation_tokens", "prompt_tokens_cached")
    before, told = [counted(url, name) for name in names], []
    found = run_load(target(url), load, tell=lambda done, of: told.append((done, of)))
    quiet(service.loop)
    assert found.errors == {}
    assert told == [(i, 12) for i in range(1, 13)]
    assert [one.output for one in found.good] == load.output.tolist()
    assert [one.prompt for one in found.good] == load.prompt.tolist()
    assert all(len(one.tokens) == one.output for one in found.good)
    assert all(one.due <= one.sent <= one.tokens[0] <= one.tokens[-1] <= one.end for one in found.good)
    after = [counted(url, name) - was for name, was in zip(names, before, strict=True)]
    shown = found.as_json(Limits())
    assert after == [shown["prompt_tokens"], shown["output_tokens"], shown["cached_tokens"]]
    assert shown["cached_tokens"] == 11 * 16  # the prefix was read once
    first = [target(url).body(load, i, 0)["prompt"] for i in range(12)]
    assert len({tuple(ids[:16]) for ids in first}) == 1
    assert len({tuple(ids) for ids in first}) == 12


def test_refusals_are_counted_and_leave_the_times_alone(service: Service, url: str):
    load = open_loop(drawn(Traffic.of(10, 40, 0), 60, seed=2), rate=1e5)
    found = run_load(target(url), load, skip=2)
    quiet(service.loop)
    assert len(found.sent) == 58
    assert set(found.errors) == {"429"}
    assert found.errors["429"] + len(found.good) == 58
    assert found.good_share(Limits()) == len(found.good) / 58
    assert len(found.ttft) == len(found.tpot) == len(found.good)


def test_a_trace_of_chats_without_further_fields(service: Service, url: str):
    lengths, at = Traffic(prompt=[6, 9], output=[4, 4], prefix=[0, 0]), np.array([0.01, 0.0])
    load = replay(lengths, at)
    body = target(url, api="chat", plain=True).body(load, 0, 0)
    assert len(body["messages"][0]["content"].split()) == 9
    assert set(body) == {"model", "max_tokens", "temperature", "stream", "stream_options", "messages"}
    with pytest.raises(InputError, match="answers no request: 400 messages: the model has no chat template"):
        run_load(target(url, api="chat"), load)


def test_times_and_goodput():
    sent = (
        Sent(due=0.0, sent=0.25, tokens=[1.0, 1.5, 2.5], end=2.5, prompt=7, output=3),
        Sent(due=1.0, sent=1.0, tokens=[1.5], end=1.5, prompt=7, output=1),
        Sent(due=2.0, sent=2.0, end=2.0, error="429"),
        Sent(due=2.0, sent=2.0, tokens=[3.0, 6.0], end=6.0, prompt=7, output=2),
    )
    found = Measured(Target("http://x/v1", "m"), sent)
    assert found.ttft.tolist() == [1.0, 0.5, 1.0]
    assert found.tpot.tolist() == [0.75, 3.0]
    times = found.percentiles()
    assert times["itl"] is not None
    assert times["itl"]["mean"] == (0.5 + 1.0 + 3.0) / 3
    assert times["late"] is not None
    assert times["late"]["mean"] == 0.0625
    assert found.seconds == 6.0
    assert found.good_share(Limits(tpot=1.0)) == 0.5
    assert found.good_share(Limits(ttft=0.6)) == 0.25
    assert found.as_json(Limits(tpot=1.0))["goodput_requests_per_second"] == 2 / 6


def test_a_load_is_the_same_each_time():
    load: Load = drawn(traffic(), 5, seed=3)
    asked = Target("http://x/v1", "m")
    assert [asked.body(load, i, 1) for i in range(5)] == [asked.body(load, i, 1) for i in range(5)]
    assert asked.body(load, 0, 1) != asked.body(load, 0, 2)
