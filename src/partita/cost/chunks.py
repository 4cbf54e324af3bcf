"""In which steps a prefill reads its prompts. Knows nothing about models, chips or time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.cost.ledger import Number


@dataclass(frozen=True)
class Turn:
    """A step of every sequence, or several alike; only after the last one of a prompt are there logits.

    `queries` new tokens attend to `context` positions, their own included; None: to each other alone.
    """

    queries: int
    context: Number | None
    last: bool = True


def prefill_turns(prompt: int, prefix: int, chunk: int | None) -> tuple[Turn, ...]:
    """The chunks of a prompt whose first `prefix` tokens are cached: those before the last, then the last.

    The first has an array of contexts, float64 [chunks - 1], and is left out where there is but one chunk.
    """
    new = prompt - prefix
    if chunk is None or chunk >= new:
        return (Turn(new, prompt if prefix else None),)
    ends = prefix + chunk * np.arange(1, -(-new // chunk), dtype=float)
    return Turn(chunk, ends, last=False), Turn(prompt - int(ends[-1]), prompt)
