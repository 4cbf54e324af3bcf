"""`partita batch` as a process that is killed, and run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cli.conftest import Partita


def test_after_a_kill_every_line_is_answered_once(partita: Partita, tiny: Path, tmp_path: Path):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": [1, 2, 3], "max_tokens": 60, "ignore_eos": True}
    lines = [
        json.dumps({"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body})
        for i in range(100)
    ]
    requests.write_text("\n".join([*lines, "{"]), encoding="utf-8")
    command = [sys.executable, "-m", "partita", "batch", str(tiny), str(requests), str(out), "--slots", "2"]
    with subprocess.Popen(
        command, env={**os.environ, "PARTITA_CACHE": "none"}, stderr=subprocess.DEVNULL
    ) as process:
        while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    begun = out.read_bytes()
    ran = partita("batch", tiny, requests, out, "--slots", "4", "--json")
    assert ran.code == 0
    assert json.loads(ran.out) == {"lines": 101, "answered": 101, "errors": 1, "out": str(out)}
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted(record["line"] for record in found) == list(range(1, 102))
    assert out.read_bytes().startswith(begun[: begun.rfind(b"\n") + 1])
    assert all(
        record["response"]["body"]["usage"]["completion_tokens"] == 60
        for record in found
        if record["custom_id"] is not None
    )
    again = partita("batch", tiny, requests, out)  # nothing is left: no model is loaded
    assert " ".join(again.out.split()) == f"101 of 101 lines have an answer in {out}, 1 an error"
    assert again.err == ""


def test_files_that_are_wrong(partita: Partita, tiny: Path, tmp_path: Path):
    ran = partita("batch", tiny, tmp_path / "none", tmp_path / "out")
    assert (ran.code, ran.err.startswith("error: in: ")) == (2, True)
    requests = tmp_path / "in"
    requests.write_text("{}", encoding="utf-8")
    ran = partita("batch", tiny, requests, requests)
    assert (ran.code, ran.err) == (2, f"error: out: {requests}: is the file of requests; give another\n")
