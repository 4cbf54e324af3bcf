"""What `partita generate` shows of what is generated: text as it comes, or all of it as JSON."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partita.specs.sampling import Sampling

if TYPE_CHECKING:
    from partita.engine.engine import Engine
    from partita.engine.stopping import Likely, Piece


@dataclass
class GeneratedText:
    """One sample of a prompt: its text, its tokens, why it ended ("length" or "stop")."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    likely: list[Likely] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += [] if piece.token is None else [piece.token]
        self.likely += [] if piece.likely is None else [piece.likely]
        self.finish_reason = piece.finish or self.finish_reason

    def as_json(self, prompt: str, sampling: Sampling) -> dict[str, Any]:
        found: dict[str, Any] = {
            "text": prompt + self.text,
            "completion": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "completion_tokens": len(self.tokens),
        }
        if sampling.logprobs is not None:
            found["logprobs"] = [
                {
                    "token": token,
                    "logprob": likely.logprob,
                    "alternatives": [{"token": t, "logprob": p} for t, p in likely.alternatives],
                }
                for token, likely in zip(self.tokens, self.likely, strict=True)
            ]
        return found


def stream(
    engine: Engine, ids: list[int], sampling: Sampling, shown: str, quiet: bool
) -> tuple[list[GeneratedText], dict[str, float]]:
    """All samples of a prompt, and the seconds of each phase.

    Unless `quiet`, writes `shown` and then the text as it comes to standard output; of several samples each
    once it has ended.
    """

    def write(text: str) -> None:
        if not quiet:
            sys.stdout.write(text)
            sys.stdout.flush()

    samples, start, first = [GeneratedText() for _ in range(sampling.n)], time.perf_counter(), 0.0
    if sampling.n == 1:
        write(shown)
    for written in engine.written([ids], [sampling]):
        first = first or time.perf_counter() - start
        sample = samples[written.sample]
        sample.add(written.piece)
        if sampling.n == 1:
            write(written.piece.text)
        elif written.piece.finish:
            write(f"--- sample {written.sample + 1} of {sampling.n}\n{shown}{sample.text}\n")
    if sampling.n == 1:
        write("\n")
    return samples, {"prefill": first, "decode": time.perf_counter() - start - first}
