"""`partita bench serve`: what it prints of a server that runs here, and options that are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.conftest import Partita
from tests.schemas import json_schema, undocumented, validator
from tests.server.listening import listening
from tests.server.serving import quiet, served

from partita.server.service import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with listening(service) as address:
        yield address


def test_the_command_and_its_json(partita: Partita, service: Service, url: str):
    options = ("--url", url, "--api-key", "secret", "--vocabulary", 64, "--prompt", 20, "--output", 3)
    beside = ("--against", "smollm2-135m", "--on", "tpu-v4:1x1x1", "--slots", 4)
    ran = partita("bench", "serve", *options, "--clients", 2, "--requests", 6, *beside, "--json")
    quiet(service.loop)
    assert ran.code == 0
    found = json.loads(ran.out)
    validator("load-1").validate(found)
    assert list(undocumented(found, json_schema("load-1"))) == []
    assert (found["requests"], found["answered"], found["load"]["skipped"]) == (4, 4, 2)
    assert found["simulated"]["policy"] == "serve"
    assert found["simulated"]["requests"] == 4
    shown = partita("bench", "serve", *options, "--rate", "1000/s", "--requests", 3, "--max-ttft", "60s")
    assert shown.code == 0
    assert "goodput, requests a second" in shown.out
    assert "3 of 3 requests answered" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--url", "http://127.0.0.1:9/v1", "--clients", "1"), "url: http://127.0.0.1:9/v1: cannot be asked"),
        (("--url", "nonsense", "--clients", "1"), "url: nonsense: cannot be asked"),
        ((), "rate: give --rate, --clients"),
        (("--clients", "1", "--api", "x"), "api: x: accepted are completions, chat"),
        (("--clients", "1", "--on", "h100:1x1"), "on: h100:1x1: needs --against"),
        (("--clients", "1", "--timeout", "0"), "timeout: 0.0: a number above 0"),
        (("--clients", "1", "--vocabulary", "0"), "vocabulary: 0: "),
        (("--clients", "200"), "clients: 200: 1 to 100"),
    ],
)
def test_wrong_options_are_refused_in_one_line(partita: Partita, options: tuple[str, ...], problem: str):
    ran = partita("bench", "serve", *options)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {problem}")
    assert ran.err.count("\n") == 1


def test_a_wrong_key_and_another_server(partita: Partita, url: str):
    ran = partita("bench", "serve", "--url", url, "--api-key", "wrong", "--clients", 1)
    assert (ran.code, ran.err) == (2, f"error: url: {url}: its /models answers 401\n")
    ran = partita("bench", "serve", "--url", url, "--model", "other", "--api-key", "secret", "--clients", 1)
    assert ran.code == 2
    assert "answers no request: 404 the model 'other' does not exist" in ran.err
