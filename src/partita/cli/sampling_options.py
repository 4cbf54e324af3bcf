"""The options that say how tokens are drawn, and what they make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from partita.cli.output import show_note
from partita.errors import InputError
from partita.specs.sampling import Sampling

_OPEN = "Default: as the checkpoint asks, else"
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", help=f"Most tokens to generate. {_OPEN} 64, or as many as fit."),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help=f"0 always takes the most likely token. {_OPEN} 0."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", help=f"Only the k most likely tokens; 0 for all. {_OPEN} 0.")
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p", help=f"Only the most likely tokens whose probabilities add up to this. {_OPEN} 1."
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p", help=f"Only tokens with at least this share of the highest probability. {_OPEN} 0."
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty", help=f"Divides logits of tokens in the prompt or the output. {_OPEN} 1."
    ),
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


_DRAWN_BY = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


@contextmanager
def named_as_options() -> Iterator[None]:
    """Errors in a field of `Sampling` name its option."""
    try:
        yield
    except InputError as error:
        raise InputError(error.field.replace("_", "-"), error.value, error.message) from None


def completed(given: Mapping[str, Any], asked: Mapping[str, float], room: int | None) -> Sampling:
    """The settings `given` on the command line (None where an option is not), and where they leave it open
    those that the checkpoint has `asked` for, which are said on standard error; of tokens no more than the
    model has `room` for. Raises InputError naming the option."""
    given = {name: value for name, value in given.items() if value is not None}
    taken = {name: value for name, value in asked.items() if name not in given}
    if room is not None and "max_tokens" in taken:
        taken["max_tokens"] = max(1, min(taken["max_tokens"], room))
    with named_as_options():
        sampling = Sampling(**{**taken, **given})
    if taken:
        options = ", ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in taken.items())
        show_note(f"the checkpoint asks for {options}; what is given on the command line goes before")
    return sampling


def as_json(sampling: Sampling, given: Mapping[str, Any], asked: Mapping[str, float]) -> dict[str, Any]:
    """The settings that tokens are drawn by, and the names of those that the checkpoint asked for."""
    names = ("max_tokens", *_DRAWN_BY)
    taken = [name for name in asked if given.get(name) is None]
    return {**{name: getattr(sampling, name) for name in names}, "from_checkpoint": taken}


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
