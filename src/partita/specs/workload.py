"""What is asked of a model: how many sequences, how long.

Knows nothing about the model, the chips or how long anything takes.
"""

from __future__ import annotations

from operator import index

from pydantic import BaseModel, ConfigDict

from partita.errors import InputError

# a phase's time is summed over its output tokens, one by one
_MOST = {"output": 10**6}


class Workload(BaseModel):
    """Sequences of one shape. All fields are whole numbers of at least 1.

    prompt, output: tokens of one sequence read in prefill and written in decode.
    batch: sequences decoded together. prefill_batch: sequences prefilled together, by default `batch`.
    context: positions of the KV cache for one sequence, by default `prompt + output`. It may be given
    apart from them: a published decode figure is often for a fixed context.

    Raises InputError on the field that is not such a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: int
    output: int
    batch: int
    prefill_batch: int
    context: int

    def __init__(
        self,
        *,
        prompt: int,
        output: int,
        batch: int,
        prefill_batch: int | None = None,
        context: int | None = None,
    ):
        prompt, output, batch = _count("prompt", prompt), _count("output", output), _count("batch", batch)
        super().__init__(
            prompt=prompt,
            output=output,
            batch=batch,
            prefill_batch=batch if prefill_batch is None else _count("prefill_batch", prefill_batch),
            context=prompt + output if context is None else _count("context", context),
        )


def _count(field: str, value: object) -> int:
    try:
        number = 0 if isinstance(value, bool) else index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(field, value, "must be a whole number of at least 1")
    if number > _MOST.get(field, 10**9):
        raise InputError(field, value, f"must be at most {_MOST.get(field, 10**9):,}")
    return number
