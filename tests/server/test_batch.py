"""Batches: every line is answered exactly once, wherever a run was stopped and whatever a line holds."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from tests.engine.asking import MODEL
from tests.server.serving import alone, quiet, small_engine, started

from partita.errors import InputError
from partita.server.batch import AnswerFile, Tally, count_lines, run_batch
from partita.server.generation import Stopping
from partita.server.loop import Limits
from partita.server.service import Service
from partita.specs.sampling import Sampling


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    loop = started(small_engine(), Limits(queue=10**6))
    yield Service(loop, "tiny")
    loop.stop()
    assert loop.join(60)


def line(number: int, **more: Any) -> str:
    body = {"prompt": [1 + number % 9] * (1 + number % 5), "max_tokens": 1 + number % 7, "temperature": 0}
    return json.dumps(
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body | more}
    )


def answer(service: Service, requests: Path, out: Path, told: list[Tally] | None = None) -> Tally:
    answers = AnswerFile(out)
    try:
        lines, told = count_lines(requests), [] if told is None else told
        return asyncio.run(run_batch(service, requests, answers, told.append, lines))
    finally:
        answers.close()
        quiet(service.loop)


def records(out: Path) -> list[dict[str, Any]]:
    text = out.read_text(encoding="utf-8")
    assert text.endswith("\n") or not text
    return [json.loads(each) for each in text.splitlines()]


def test_every_answer_is_that_of_its_request_alone(service: Service, tmp_path: Path):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("\n".join(line(number) for number in range(20)) + "\n\n", encoding="utf-8")
    tally = answer(service, requests, out)
    assert (tally.lines, tally.done, tally.errors) == (20, 20, 0)
    found = {record["custom_id"]: record for record in records(out)}
    assert sorted(record["line"] for record in found.values()) == list(range(1, 21))
    for number in range(20):
        record, asked = found[f"r{number}"], json.loads(line(number))["body"]
        assert record["error"] is None
        assert record["response"]["status_code"] == 200
        written = Completion.model_validate(record["response"]["body"])
        sampling = Sampling(max_tokens=asked["max_tokens"])
        assert written.choices[0].text == alone(service.loop.engine, asked["prompt"], sampling)[0][0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.62, 0.999, 1.0])
def test_wherever_a_run_was_stopped_the_next_ends_with_every_line_once(
    service: Service, tmp_path: Path, share: float
):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(number) for number in range(8)] + ["no JSON"]
    requests.write_text("\n".join(lines), encoding="utf-8")
    answer(service, requests, out)
    whole = out.read_bytes()
    kept = whole[: int(share * len(whole))]  # a kill may leave any of its bytes
    out.write_bytes(kept)
    tally = answer(service, requests, out)
    assert (tally.done, tally.errors) == (9, 1)
    assert sorted(record["line"] for record in records(out)) == list(range(1, 10))
    assert out.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])


BAD: dict[str, tuple[str, str]] = {
    "cut": ('{"custom_id": "x', "line 1 is no JSON"),
    "no object": ("[1]", "line 1 must be an object"),
    "nested": ("[" * 10**5, "line 1 is no JSON"),
    "no name": ('{"url": "/v1/completions", "body": {}}', "line 1 needs a text custom_id"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_answered_with_its_number(service: Service, tmp_path: Path, name: str):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    text, problem = BAD[name]
    requests.write_text(f"{text}\n{line(1)}\n{line(1)}\n", encoding="utf-8")
    tally = answer(service, requests, out)
    assert (tally.done, tally.errors) == (3, 2)
    first, second, third = sorted(records(out), key=lambda record: record["line"])
    assert first["response"] is None
    assert first["error"]["code"] == "invalid_line"
    assert first["error"]["message"].startswith(problem)
    assert second["response"]["status_code"] == 200
    assert third["error"]["message"] == "line 3 has the custom_id of line 2"


def test_a_wrong_body_is_answered_as_over_http(service: Service, tmp_path: Path):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    wrong = {
        "max_tokens": line(0, max_tokens=0),
        "temperature": line(1, temperature="hot"),
        "prompt": line(2, prompt=[MODEL.vocabulary]),
        "stream": line(3, stream=True),
        "url": line(4).replace("/v1/completions", "/v1/embeddings"),
        "model": line(5, model="other"),
    }
    requests.write_text("\n".join(wrong.values()), encoding="utf-8")
    assert answer(service, requests, out).errors == len(wrong)
    for field, record in zip(wrong, sorted(records(out), key=lambda record: record["line"]), strict=True):
        assert record["error"] is None
        assert 400 <= record["response"]["status_code"] < 500
        assert record["response"]["body"]["error"]["param"] == field


def test_a_full_disk_stops_it_cleanly(service: Service, tmp_path: Path):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("\n".join(line(number) for number in range(12)), encoding="utf-8")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InputError, match=r"cannot be written: .*; run it again to go on"):
            answer(service, requests, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 1 <= len(records(out)) < 12  # and no part of one
    assert answer(service, requests, out).done == 12
    assert sorted(record["line"] for record in records(out)) == list(range(1, 13))


def test_files_that_are_wrong(service: Service, tmp_path: Path):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text(line(1), encoding="utf-8")
    answer(service, requests, out)
    requests.write_text(line(2), encoding="utf-8")
    with pytest.raises(InputError, match="line 1 is not the one"):
        answer(service, requests, out)
    out.write_text("something else\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 1 is no answer of a batch"):
        AnswerFile(out)
    assert out.read_text(encoding="utf-8") == "something else\n"
    out.unlink()
    held = AnswerFile(out)
    with pytest.raises(InputError, match="is being written by another run"):
        AnswerFile(out)
    held.close()
    with pytest.raises(InputError, match=r"in: .*: cannot be read: No such file"):
        count_lines(tmp_path / "none")
    with pytest.raises(InputError, match=r"out: .*: cannot be written: "):
        AnswerFile(tmp_path)


def test_a_step_that_fails_is_tried_again_and_an_engine_that_has_ended_stops_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text(line(6), encoding="utf-8")
    step, failures = type(service.loop.slots).step, iter([True, True])

    def failing(self: Any, masks: Any) -> Any:
        return 1 / 0 if next(failures, False) else step(self, masks)

    monkeypatch.setattr(type(service.loop.slots), "step", failing)
    assert answer(service, requests, out).errors == 0, out.read_text(encoding="utf-8")
    out.unlink()
    ended = started(service.loop.engine, Limits(prefixes=0))
    ended.stop()
    assert ended.join(60)
    with pytest.raises(Stopping):
        answer(Service(ended, "tiny"), requests, out)
    assert records(out) == []
