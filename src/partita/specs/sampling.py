"""How one request is continued: how tokens are drawn, how many, and where the text ends.

Names, ranges and defaults are those of OpenAI's API and of vLLM, but greedy is the default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from partita.errors import InputError
from partita.specs.arguments import as_whole

MOST_LOGPROBS = 20
"""The most alternatives whose log-probabilities can be given beside each token."""
GREEDY_BELOW = 1e-5
"""A temperature below this is 0: dividing by it would leave nothing but the best token either way."""

_USUAL_TOKENS = 64

_NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_COUNTS: dict[str, tuple[int, int]] = {
    "max_tokens": (1, 10**9),
    "top_k": (-1, 10**9),
    "n": (1, 1024),
    "logprobs": (0, MOST_LOGPROBS),
    "seed": (-(2**63), 2**63 - 1),
}


class Sampling(BaseModel):
    """The settings of one request. With the defaults the most likely token is taken each time.

    max_tokens: tokens written at most, at least 1; by default 64, or as many as the model takes after the
        prompt where these are fewer.
    temperature: logits are divided by it, 0 to 100; 0 takes the most likely token, whatever else is set
        below (but for penalties and biases, which change which one that is).
    top_k: only the k most likely tokens; 0 (or -1) for all of them.
    top_p: only the most likely tokens that together have this probability, above 0 to 1.
    min_p: only tokens with at least this share of the most likely one's probability, 0 to 1. Applied
        first, then top-k, then top-p to what is left, as in vLLM. Tokens of equal logits stay together.
    repetition_penalty: logits of tokens in the prompt or the output are divided by it if positive, else
        multiplied, 0.01 to 100 (Keskar et al. 2019, CTRL, section 4.1).
    presence_penalty, frequency_penalty: taken from the logits of tokens in the output, once and once for
        each time, -2 to 2.
    logit_bias: number added to the logit of a token, -100 to 100, before any penalty.
    stop: texts the output ends before. One that is or holds a special token ends it too, though the token's
        text is not shown.
    stop_token_ids: tokens the output ends before, beside the model's own.
    ignore_eos: goes on after the model's own end of text.
    skip_special_tokens: leaves special tokens, such as `<|im_end|>`, out of the text.
    logprobs: log-probabilities of each token and of so many alternatives, up to 20. They are the model's
        own: before biases, penalties and temperature.
    n: samples of one prompt, which is read once.
    seed: of the randomness, a 64-bit whole number; by default another each time.

    Raises InputError naming the field, the value and what would be accepted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int | None
    n: int
    seed: int | None

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Iterable[str] = (),
        stop_token_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        skip_special_tokens: bool = True,
        logprobs: int | None = None,
        n: int = 1,
        seed: int | None = None,
    ):
        for name, flag in (("ignore_eos", ignore_eos), ("skip_special_tokens", skip_special_tokens)):
            if not isinstance(flag, bool):
                raise InputError(name, flag, "true or false is accepted")
        super().__init__(
            max_tokens=_USUAL_TOKENS if max_tokens is None else _count("max_tokens", max_tokens),
            temperature=_number("temperature", temperature),
            top_k=max(_count("top_k", top_k), 0),
            top_p=_number("top_p", top_p),
            min_p=_number("min_p", min_p),
            repetition_penalty=_number("repetition_penalty", repetition_penalty),
            presence_penalty=_number("presence_penalty", presence_penalty),
            frequency_penalty=_number("frequency_penalty", frequency_penalty),
            logit_bias=_biases(logit_bias),
            stop=_texts(stop),
            stop_token_ids=tuple(
                _token("stop_token_ids", t) for t in _items("stop_token_ids", stop_token_ids)
            ),
            ignore_eos=ignore_eos,
            skip_special_tokens=skip_special_tokens,
            logprobs=None if logprobs is None else _count("logprobs", logprobs),
            n=_count("n", n),
            seed=None if seed is None else _count("seed", seed),
        )
        if max_tokens is None:
            self.model_fields_set.discard("max_tokens")
        if self.top_p == 0:
            raise InputError("top_p", top_p, "must be above 0, up to 1")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken each time."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether logits are changed by what was written before, or by biases."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1, 0, 0) or bool(self.logit_bias)

    def check_tokens(self, vocabulary: int) -> None:
        """Raises InputError for a token that a vocabulary of this size does not have."""
        for field in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, field):
                if token >= vocabulary:
                    raise InputError(field, token, f"token ids go from 0 to {vocabulary - 1}")


def _number(field: str, value: object) -> float:
    least, most = _NUMBERS[field]
    return _within(field, value, least, most, f"a number from {least:g} to {most:g} is accepted")


def _within(field: str, value: object, least: float, most: float, wanted: str) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= most:
        raise InputError(field, value, wanted)
    return number


def _count(field: str, value: object) -> int:
    least, most = _COUNTS[field]
    number = as_whole(value)
    if number is None or not least <= number <= most:
        raise InputError(field, value, f"a whole number from {least} to {most} is accepted")
    return number


def _token(field: str, value: object) -> int:
    number = as_whole(value)
    if number is None or not 0 <= number < 2**31:
        raise InputError(field, value, "must be a token id, a whole number from 0 up")
    return number


def _items(field: str, value: object) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InputError(field, value, "a list is accepted")
    return list(value)


def _texts(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else _items("stop", value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InputError("stop", text, "texts of at least one character are accepted")
    return tuple(dict.fromkeys(str(text) for text in texts))


def _biases(value: object) -> dict[int, float]:
    """Token ids may be written as text, as they are in JSON."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError("logit_bias", value, "numbers by token id are accepted, such as {50256: -100}")
    found = {}
    for token, bias in value.items():
        written = isinstance(token, str) and token.isascii() and token.isdecimal()
        wanted = f"must be a number from -100 to 100 (of token {token})"
        found[_token("logit_bias", int(token) if written else token)] = _within(
            "logit_bias", bias, -100, 100, wanted
        )
    return found
