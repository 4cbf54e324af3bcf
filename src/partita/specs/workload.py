"""The work that a model does: how many sequences, how long, and in which portions their prompts are read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from partita.errors import InputError
from partita.specs.arguments import as_whole

# a phase's time is summed over its output tokens and over its chunks, one by one
_MOST = {"output": 10**6}
MOST_CHUNKS = 10**6


class Workload(BaseModel):
    """Sequences of one shape. All fields are whole numbers of at least 1, but `prefix` may be 0.

    prompt, output: tokens of one sequence read in prefill and written in decode.
    batch: sequences decoded together.
    prefill_batch: prompts prefilled together, by default those of `batch` sequences.
    context: positions of the KV cache for one sequence, by default `prompt + output`. It may be given
    apart from them: a published decode figure is often for a fixed context.
    prefix: first tokens of the prompt whose keys and values are cached already; prefill computes only the
    others, at least one, which attend to these too.
    chunk: new tokens of a prompt in one prefill step, the last one shorter; by default (None) all of them.
    samples: sequences written for one prompt, which is prefilled once. Each has a cache of its own.

    Raises InputError on the field that is not such a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: int
    output: int
    batch: int
    prefill_batch: int
    context: int
    prefix: int = 0
    chunk: int | None = None
    samples: int = 1

    def __init__(
        self,
        *,
        prompt: int,
        output: int,
        batch: int,
        prefill_batch: int | None = None,
        context: int | None = None,
        prefix: int = 0,
        chunk: int | None = None,
        samples: int = 1,
    ):
        prompt, output, batch = _count("prompt", prompt), _count("output", output), _count("batch", batch)
        samples, prefix = _count("samples", samples), _prefix(prefix, prompt)
        if chunk is not None:
            chunk = _count("chunk", chunk)
            if -(-(prompt - prefix) // chunk) > MOST_CHUNKS:
                least = -(-(prompt - prefix) // MOST_CHUNKS)
                raise InputError("chunk", chunk, f"must be at least {least:,} tokens for this prompt")
        super().__init__(
            prompt=prompt,
            output=output,
            batch=batch,
            prefill_batch=(
                -(-batch // samples) if prefill_batch is None else _count("prefill_batch", prefill_batch)
            ),
            context=prompt + output if context is None else _count("context", context),
            prefix=prefix,
            chunk=chunk,
            samples=samples,
        )

    def resized(self, **sizes: int | None) -> Workload:
        """The same workload with these fields changed."""
        return Workload(**{**self.model_dump(), **sizes})

    @property
    def new_tokens(self) -> int:
        """Tokens of a prompt that prefill computes."""
        return self.prompt - self.prefix


def _count(field: str, value: object) -> int:
    number = as_whole(value)
    if number is None or number < 1:
        raise InputError(field, value, "must be a whole number of at least 1")
    if number > _MOST.get(field, 10**9):
        raise InputError(field, value, f"must be at most {_MOST.get(field, 10**9):,}")
    return number


def _prefix(value: object, prompt: int) -> int:
    number = as_whole(value)
    if number is None or not 0 <= number < prompt:
        raise InputError(
            "prefix",
            value,
            f"must be a whole number from 0 to {prompt - 1}: of {prompt} prompt tokens at least 1 is new",
        )
    return number
