"""How an engine is timed: it waits for cases, and answers each with the seconds of its steps.

Runs inside a peer's own environment, so it needs nothing but the standard library. Knows no engine. An engine
stays loaded between cases, so that `bench/engine.py` can go round all engines and a slow minute of the
machine meets all of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

FEWEST = 3
"""Steps of one visit, however long they take."""

Step = Callable[[], Any]
"""Runs one step and returns when its tokens are on the host."""


@dataclass(frozen=True)
class Case:
    """Prompts of `tokens` each, or one token for each of `batch` sequences behind `tokens` cached ones."""

    phase: str
    batch: int
    tokens: int

    @property
    def new_tokens(self) -> int:
        """Tokens that one step reads (prefill) or makes (decode)."""
        return self.batch * (self.tokens if self.phase == "prefill" else 1)


def serve(ready: Callable[[Case], Step], about: Mapping[str, Any]) -> None:
    """Says `about` the engine, then answers each case of standard input, one line of JSON each.

    about: its "version", the "weight_bytes" that a step reads, "cache_bytes" of one number in the cache.
    ready: makes a case's step; it may compile and allocate, and is called again when a case comes back
    after another one, so that no more than one case is held in memory.
    """
    out, held = sys.stdout, None
    _say(out, about)
    for line in sys.stdin:
        asked = json.loads(line)
        case, seconds = Case(**asked["case"]), asked["seconds"]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                if held is None or held[0] != case:
                    held = None  # the last one's memory first
                    held = case, ready(case)
                    held[1]()
                _say(out, {"step_seconds": timed(held[1], seconds)})
        except Exception as error:
            held = None
            _say(
                out, {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            )


def timed(step: Step, seconds: float) -> list[float]:
    """Seconds of each of the steps that fit in `seconds`, at least `FEWEST`."""
    took, begun = [], time.perf_counter()
    while len(took) < FEWEST or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return took


def question(case: Case, seconds: float) -> str:
    """The line that asks a served engine for a case."""
    return json.dumps({"case": asdict(case), "seconds": seconds})


def _say(out: IO[str], what: Mapping[str, Any]) -> None:
    print(json.dumps(dict(what)), file=out, flush=True)
