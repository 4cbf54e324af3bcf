"""What may be asked of a model: checked before any weight is placed or any step compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index

from partita.errors import InputError
from partita.specs.model import Model


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
    tokens, limit = max(len(ids) for ids in prompts) + max_tokens, model.max_context
    if limit is not None and tokens > limit:
        raise InputError(
            "context", tokens, f"{model.name} takes up to {limit} tokens, prompt and output together"
        )


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
