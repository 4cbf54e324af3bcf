"""Settings of requests as arrays, a row for each slot, as the compiled steps take them.

Knows nothing about logits or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.program.sampling import NUMBERS
from partita.specs.sampling import Sampling


@dataclass(frozen=True)
class Sample:
    """One continuation of a request: its settings, the seed that is used, and which of its samples it is."""

    request: Sampling
    seed: int
    number: int = 0


IDLE = Sample(Sampling(), seed=0)
"""What a slot without a request draws by; nobody reads it."""


def arrays(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    """Settings [slots] by name, see `program.sampling.NUMBERS`; `seed` uint32 [slots, 2], `sample` uint32."""
    found: dict[str, np.ndarray] = {
        name: np.array(
            [getattr(sample.request, name) for sample in samples], np.int32 if name == "top_k" else np.float32
        )
        for name in NUMBERS
    }
    words = [divmod(sample.seed % 2**64, 2**32) for sample in samples]
    return found | {
        "seed": np.array(words, np.uint32).reshape(-1, 2),
        "sample": np.array([sample.number for sample in samples], np.uint32),
    }


def biases(request: Sampling, vocabulary: int) -> np.ndarray:
    """Float32 [vocabulary]: what is added to each logit."""
    found = np.zeros(vocabulary, np.float32)
    for token, bias in request.logit_bias.items():
        found[token] = bias
    return found


def written(tokens: Sequence[int], vocabulary: int) -> np.ndarray:
    """Int32 [vocabulary]: how often each token is among these."""
    return np.bincount(np.asarray(tokens, np.int64), minlength=vocabulary).astype(np.int32)
