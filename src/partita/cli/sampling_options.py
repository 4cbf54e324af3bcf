"""The options that say how tokens are drawn, and what they make of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from partita.errors import InputError
from partita.specs.sampling import Sampling

MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", help="Most tokens to generate. Default: 64, or as many as still fit."),
]
Temperature = Annotated[float, typer.Option("--temperature", help="0 always takes the most likely token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Only the k most likely tokens; 0 for all.")]
TopP = Annotated[
    float, typer.Option("--top-p", help="Only the most likely tokens whose probabilities add up to this.")
]
MinP = Annotated[
    float, typer.Option("--min-p", help="Only tokens with at least this share of the highest probability.")
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Divides logits of tokens in the prompt or the output.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Subtracted from logits of tokens in the output, -2 to 2.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="The same, for each time they occur, -2 to 2.")
]
LogitBias = Annotated[
    str | None, typer.Option("--logit-bias", help="Added to logits of tokens: 50=-100,7=2.5.")
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End the output before this text; may be repeated.")
]
StopTokenIds = Annotated[
    str | None, typer.Option("--stop-token-ids", help="End the output before any of these tokens: 1,2,3.")
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Continue past the model's end of text.")]
ShowSpecial = Annotated[
    bool, typer.Option("--show-special", help="Show special tokens, such as <|im_end|>, in the text.")
]
Logprobs = Annotated[
    int | None, typer.Option("--logprobs", help="Log-probabilities with this many alternatives, in --json.")
]
Samples = Annotated[int, typer.Option("--n", help="Samples of the prompt, which is read once.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Random seed. Default: a new one each time.")]


@contextmanager
def named_as_options() -> Iterator[None]:
    """Errors in a field of `Sampling` name its option."""
    try:
        yield
    except InputError as error:
        raise InputError(error.field.replace("_", "-"), error.value, error.message) from None


def check_tokens(sampling: Sampling, vocabulary: int) -> None:
    """Raises InputError naming the option for a token that the vocabulary does not have."""
    with named_as_options():
        sampling.check_tokens(vocabulary)


def drawn_only(sampling: Sampling) -> list[str]:
    """The settings given that only matter to a random draw."""
    names = {"top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed", "n": "--n"}
    return [flag for name, flag in names.items() if getattr(sampling, name) != getattr(Sampling(), name)]


def token_ids(field: str, text: str) -> list[int]:
    """Reads `1,2,3`. Raises InputError naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        raise InputError(field, text, "token ids joined by commas are accepted, such as 1,2,3")
    return [int(part) for part in parts]


def read_biases(text: str | None) -> dict[int, float]:
    """Reads `50=-100,7=2.5`; none unless given. Raises InputError naming the field."""
    found: dict[int, float] = {}
    for part in (text or "").split(",") if text is not None else ():
        token, _, bias = part.partition("=")
        try:
            found[token_ids("logit_bias", token)[0]] = float(bias)
        except ValueError:
            raise InputError(
                "logit_bias", text, "token=number pairs joined by commas are accepted, such as 50=-100,7=2.5"
            ) from None
    return found
