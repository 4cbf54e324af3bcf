"""`partita serve` as a process: clients that vanish, and the end by a signal; and options that are wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Partita

LONG = {"prompt": [1], "max_tokens": 60, "ignore_eos": True}


@pytest.fixture
def served(tiny: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, and its address."""
    command = [sys.executable, "-m", "partita", "serve", str(tiny), "--port", "0", "--slots", "2"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PARTITA_CACHE": "none"}
    ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "it ended before it was ready"
            found = re.search(r"ready at (http://\S+)/v1", line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, found[1]
        process.kill()


def _gauges(address: str) -> tuple[float, float]:
    """Requests that run, and that wait."""
    text = httpx.get(f"{address}/metrics").text
    found = [
        re.search(rf"^vllm:num_requests_{name}{{.*}} (\S+)$", text, re.M) for name in ("running", "waiting")
    ]
    assert found[0]
    assert found[1]
    return float(found[0][1]), float(found[1][1])


def test_clients_that_vanish_and_the_end_by_sigterm(served: tuple[subprocess.Popen[str], str]):
    process, address = served
    host, port = address.removeprefix("http://").split(":")
    vanishing = []
    for number in range(30):  # streaming and not, running and in the queue
        body = json.dumps({**LONG, "n": 2, "stream": number % 2 == 0}).encode()
        client = socket.create_connection((host, int(port)))
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        vanishing.append(client)
    while not _gauges(address)[0]:
        time.sleep(0.01)
    for client in vanishing:
        client.close()
    while _gauges(address) != (0, 0):
        time.sleep(0.01)

    answers: list[httpx.Response] = []
    ask = [
        threading.Thread(
            target=lambda: answers.append(httpx.post(f"{address}/v1/completions", json=LONG, timeout=100))
        )
        for _ in range(24)
    ]
    for each in ask:
        each.start()
    while sum(_gauges(address)) < 12:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    late = 200
    while late == 200:  # until the signal has come through
        late = httpx.post(f"{address}/v1/completions", json=LONG, timeout=100).status_code
    for each in ask:
        each.join()
    assert late == 503
    taken = [answer for answer in answers if answer.status_code == 200]
    assert len(taken) >= 12
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert all(answer.json()["usage"]["completion_tokens"] == 60 for answer in taken)
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--port", "70000"), "port"),
        (("--host", "no.such.host.invalid"), "port"),
        (("--slots", "0"), "slots"),
        (("--context", "65"), "context"),
        (("--context", "1"), "context"),
        (("--max-queue", "0"), "max-queue"),
        (("--max-seconds", "nan"), "max-seconds"),
        (("--prefixes", "-1"), "prefixes"),
        (("--max-body", "0"), "max-body"),
        (("--api-key", ""), "api-key"),
        (("--mesh", "q"), "mesh"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    partita: Partita, tiny: Path, options: tuple[str, str], field: str
):
    ran = partita("serve", tiny, *options)
    assert ran.code == 2
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith(f"error: {field}: ")
