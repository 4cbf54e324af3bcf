"""What may be asked of a model: checked before any weight is placed or any step compiled."""

from __future__ import annotations

from collections.abc import Sequence

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
    if not prompts:
        raise InputError("prompt", None, "at least one prompt is needed")
    for ids in prompts:
        if not ids:
            raise InputError("prompt", "", "a prompt needs at least one token")
        for token in ids:
            if not 0 <= token < model.vocabulary:
                raise InputError("prompt", token, f"token ids go from 0 to {model.vocabulary - 1}")
    tokens, limit = max(len(ids) for ids in prompts) + max_tokens, model.max_context
    if limit is not None and tokens > limit:
        raise InputError(
            "context", tokens, f"{model.name} takes up to {limit} tokens, prompt and output together"
        )
