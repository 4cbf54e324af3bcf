"""Requests: what may be asked of a model, and their settings as the compiled steps take them.

Checked before any weight is placed or any step compiled; settings are arrays with a row for each slot. Knows
nothing about logits or devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from partita.errors import InputError
from partita.program.sampling import NUMBERS, Kind, needs
from partita.specs.model import Model
from partita.specs.sampling import Sampling


def check_model(model: Model) -> None:
    """Raises InputError naming the features that can be planned for but that the engine does not run yet."""
    if model.beyond_engine:
        raise InputError(
            "model",
            model.name,
            f"has {', '.join(model.beyond_engine)}, which can be planned for but not run yet; "
            "models without are accepted",
        )


def check_stages(stages: int) -> None:
    """Raises InputError for a plan with pipeline stages."""
    if stages > 1:
        raise InputError("stages", stages, "pipeline stages can be planned but not run yet; 1 is accepted")


def check_prompts(model: Model, prompts: Sequence[Sequence[int]], max_tokens: int = 0) -> None:
    """Raises InputError for no or an empty prompt, unknown tokens, and more of them than the model takes."""
    if not len(prompts):
        raise InputError("prompt", None, "at least one prompt is needed")
    for ids in prompts:
        if not len(ids):
            raise InputError("prompt", "", "a prompt needs at least one token")
        for token in ids:
            if not 0 <= token < model.vocabulary:
                raise InputError("prompt", int(token), f"token ids go from 0 to {model.vocabulary - 1}")
    longest, limit = max(len(ids) for ids in prompts), model.max_context
    if limit is not None and longest + max_tokens > limit:
        parts = f"prompt {longest} + output {max_tokens}" if max_tokens else f"a prompt of {longest}"
        message = f"{parts} exceeds the {limit} tokens that {model.name} takes"
        raise InputError("context", longest + max_tokens, message)


def fitted(model: Model, prompt: int, request: Sampling) -> Sampling:
    """A request for a prompt of so many tokens: one that leaves `max_tokens` open asks for no more than the
    model takes, but for at least one."""
    if model.max_context is None or "max_tokens" in request.model_fields_set:
        return request
    room = max(1, model.max_context - prompt)
    return request if request.max_tokens <= room else request.model_copy(update={"max_tokens": room})


def whole_ids(prompt: object) -> list[int]:
    """Token ids as a list of ints, from any sequence of whole numbers, NumPy's too.

    Raises InputError (field "prompt") for anything else.
    """
    try:
        if isinstance(prompt, str | bytes) or not isinstance(prompt, Iterable):
            raise TypeError
        ids = list(prompt)
        if any(isinstance(token, bool) for token in ids):
            raise TypeError
        return [index(token) for token in ids]
    except TypeError:
        raise InputError(
            "prompt", repr(prompt)[:60], "a list of whole numbers, token ids, is accepted"
        ) from None


def separate(prompts: object) -> list:
    """Several prompts. Raises InputError (field "prompt") for one that stands alone."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise InputError("prompt", repr(prompts)[:60], "a list of prompts is accepted")
    return list(prompts)


# -- settings as arrays ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One continuation of a request: its settings, the seed that is used, and which of its samples it is.

    masked: whether whoever drives the slots says before every draw which tokens are allowed.
    """

    request: Sampling
    seed: int
    number: int = 0
    masked: bool = False

    @property
    def kind(self) -> Kind:
        """The least kind of draw that serves it."""
        return "full" if self.masked else needs(self.request)


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
