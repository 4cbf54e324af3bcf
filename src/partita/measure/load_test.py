"""A load sent to a server that speaks OpenAI's API, and what its users saw: the same numbers as a simulation.

Requests of an open loop and of a trace are sent at their times, whoever waits, and times count from then on,
so that a server that falls behind cannot hide it; those of a closed loop are sent as the one before ends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import httpx
import numpy as np

from partita.errors import InputError, one_line
from partita.simulation.load import Load
from partita.simulation.result import Floats, Limits, percentiles_of, tpot_of

SCHEMA = "partita.load/1"
Api = Literal["completions", "chat"]
_WORDS = ("time", "people", "way", "water", "word", "number", "day", "part", "sound", "place", "year", "line")
"""Of which chats are made: a token each in most vocabularies."""
_ERROR_SHOWN = 80


@dataclass(frozen=True)
class Target:
    """A server and how it is asked.

    url: up to `/v1`. api: prompts of completions are token ids below `vocabulary`, so that their lengths are
    exact; those of chats are as many words. plain: only OpenAI's own fields are sent; otherwise outputs go on
    past the model's end (`ignore_eos`), so that their lengths are exact too. seconds: a request's most.
    """

    url: str
    model: str
    api: Api = "completions"
    key: str = ""
    plain: bool = False
    vocabulary: int = 1000
    temperature: float = 0.0
    seconds: float = 600.0

    @property
    def path(self) -> str:
        return f"{self.url.rstrip('/')}/{'chat/completions' if self.api == 'chat' else 'completions'}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, load: Load, number: int, seed: int) -> dict[str, Any]:
        """The request `number` of a load. Those with a prefix begin with the same tokens."""
        lengths = int(load.prefix[number]), int(load.prompt[number] - load.prefix[number])
        most = len(_WORDS) if self.api == "chat" else self.vocabulary
        shared, own = (
            np.random.default_rng([seed, which]).integers(0, most, count).tolist()
            for which, count in zip((0, 1 + number), lengths, strict=True)
        )
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": int(load.output[number]),
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.api == "chat":
            text = " ".join(_WORDS[word] for word in [*shared, *own])
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = [*shared, *own]
        return body if self.plain else body | {"ignore_eos": True, "return_token_ids": True}


@dataclass
class Sent:
    """A request: seconds from the beginning at which it was due, was sent, and had its tokens."""

    due: float
    sent: float = 0.0
    tokens: list[float] = field(default_factory=list)  # when each piece came
    end: float = 0.0
    prompt: int = 0
    output: int = 0
    cached: int = 0
    error: str = ""


@dataclass(frozen=True, eq=False)
class Measured:
    """Requests that count, in the order in which they were due."""

    target: Target
    sent: tuple[Sent, ...]

    @cached_property
    def good(self) -> tuple[Sent, ...]:
        """Those that were answered."""
        return tuple(one for one in self.sent if not one.error)

    @property
    def errors(self) -> dict[str, int]:
        """How many ended by each error."""
        return dict(Counter(one.error for one in self.sent if one.error).most_common())

    @property
    def seconds(self) -> float:
        """From when the first was due to the last end."""
        return max(one.end for one in self.sent) - min(one.due for one in self.sent)

    @cached_property
    def ttft(self) -> Floats:
        return np.array([one.tokens[0] - one.due for one in self.good])

    @cached_property
    def e2e(self) -> Floats:
        return np.array([one.tokens[-1] - one.due for one in self.good])

    @cached_property
    def output(self) -> np.ndarray:
        return np.array([one.output for one in self.good], np.int64)

    @cached_property
    def tpot(self) -> Floats:
        """Of the requests that wrote more than one token."""
        return tpot_of(self.ttft, self.e2e, self.output)

    def percentiles(self) -> dict[str, dict[str, float] | None]:
        """Of each time its mean and percentiles; None where there is none. `late`: from when a request was
        due to when it was sent, which says whether this side kept up."""
        itl = np.concatenate([np.diff(one.tokens) for one in self.good]) if self.good else np.zeros(0)
        late = np.array([one.sent - one.due for one in self.sent])
        every = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e, "itl": itl, "late": late}
        return {name: percentiles_of(values) for name, values in every.items()}

    def good_share(self, limits: Limits) -> float:
        """Share of all requests that were answered within the limits."""
        return float(limits.kept(self.ttft, self.tpot, self.output).sum()) / len(self.sent)

    def as_json(self, limits: Limits) -> dict[str, Any]:
        """What is measured, in what `bench --json` prints; its keys are stable."""
        share, seconds = self.good_share(limits), self.seconds
        return {
            "schema": SCHEMA,
            "url": self.target.url,
            "model": self.target.model,
            "api": self.target.api,
            "limits": {"ttft_seconds": limits.ttft, "tpot_seconds": limits.tpot},
            "requests": len(self.sent),
            "answered": len(self.good),
            "errors": self.errors,
            "seconds": seconds,
            **{f"{name}_seconds": found for name, found in self.percentiles().items()},
            "good_share": share,
            "goodput_requests_per_second": share * len(self.sent) / seconds,
            "requests_per_second": len(self.good) / seconds,
            "output_tokens_per_second": float(self.output.sum()) / seconds,
            "prompt_tokens": sum(one.prompt for one in self.good),
            "output_tokens": int(self.output.sum()),
            "cached_tokens": sum(one.cached for one in self.good),
        }


def find_model(url: str, key: str) -> str:
    """The first model that a server has. Raises InputError (field "url") where it cannot be asked."""
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise InputError("url", url, f"its /models answers {error.response.status_code}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError("url", url, f"cannot be asked for its models: {_said(error)}") from None
    except (ValueError, LookupError, TypeError):
        raise InputError(
            "url", url, "gives no list of models; an address such as .../v1 is accepted"
        ) from None


def run_load(
    target: Target,
    load: Load,
    seed: int = 0,
    skip: int = 0,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Measured:
    """Sends a load; the first `skip` requests do not count. `tell` is given how many have ended, of how many.

    Raises InputError (field "skip") where none would count, and (field "url") where not one was answered.
    """
    load.check_skip(skip)
    sent = asyncio.run(_Sending(target, load, seed, tell).all())
    counted = tuple(sent[skip:])
    if all(one.error for one in counted):
        raise InputError("url", target.url, f"answers no request: {counted[0].error}")
    return Measured(target, counted)


class _Sending:
    """A load on its way."""

    def __init__(self, target: Target, load: Load, seed: int, tell: Callable[[int, int], None]):
        self.target, self.load, self.seed, self.tell = target, load, seed, tell
        self.done = 0

    async def all(self) -> list[Sent]:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(self.target.seconds)
        async with httpx.AsyncClient(
            limits=unlimited, timeout=timeout, headers=self.target.headers
        ) as client:
            self.client, self.began = client, time.perf_counter()
            if self.load.arrival is None:
                return await self._closed()
            return await self._open(self.load.arrival)

    async def _open(self, arrival: Floats) -> list[Sent]:
        tasks = []
        for number, due in enumerate(arrival.tolist()):
            if (ahead := due - self._now()) > 0:
                await asyncio.sleep(ahead)
            tasks.append(asyncio.ensure_future(self._send(number, due)))
        return list(await asyncio.gather(*tasks))

    async def _closed(self) -> list[Sent]:
        found: dict[int, Sent] = {}
        numbers = iter(range(self.load.requests))

        async def client() -> None:
            for number in numbers:  # of which each client takes the next
                found[number] = await self._send(number, self._now())

        await asyncio.gather(*(client() for _ in range(self.load.clients)))
        return [found[number] for number in sorted(found)]

    def _now(self) -> float:
        return time.perf_counter() - self.began

    async def _send(self, number: int, due: float) -> Sent:
        body, one = self.target.body(self.load, number, self.seed), Sent(due)
        one.sent = self._now()
        try:
            async with self.client.stream("POST", self.target.path, json=body) as answer:
                if answer.status_code != 200:
                    one.error = _refusal(answer.status_code, await answer.aread())
                else:
                    await self._read(one, answer)
        except httpx.HTTPError as error:
            one.error = _said(error)
        one.end = self._now()
        if not one.error and not one.tokens:
            one.error = "no token came"
        one.output = one.output or len(one.tokens)
        self.done += 1
        self.tell(self.done, self.load.requests)
        return one

    async def _read(self, one: Sent, answer: httpx.Response) -> None:
        async for event in _events(answer):
            if "error" in event:
                one.error = str((event["error"] or {}).get("message", event["error"]))[:_ERROR_SHOWN]
            if usage := event.get("usage"):
                one.prompt, one.output = usage["prompt_tokens"], usage["completion_tokens"]
                one.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            now = self._now()
            one.tokens += [now for choice in event.get("choices", ()) if _has_token(choice)]


def _has_token(choice: dict[str, Any]) -> bool:
    """Whether a piece brings a token: it says which, or has text."""
    delta = choice.get("delta") or {}
    return bool(
        choice.get("token_ids") or choice.get("text") or delta.get("content") or delta.get("tool_calls")
    )


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _refusal(status: int, raw: bytes) -> str:
    """A status, and what is said beside it, in so few words that alike errors are counted together."""
    try:
        message = str(json.loads(raw)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = ""
    return f"{status}" if status in (429, 503) or not message else f"{status} {message[:_ERROR_SHOWN]}"


def _said(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}").rstrip(": ")[:_ERROR_SHOWN]
