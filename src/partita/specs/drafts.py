"""Speculative decoding as it is described: how tokens are drafted, and how many of them are accepted."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

from partita.errors import InputError

Method = Literal["ngram", "mtp", "eagle3"]
"""ngram: copied from where the last tokens stood before, by the host. mtp: by a module of multi-token
prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2). eagle3: by an EAGLE-3 head (arXiv 2503.01840)."""
METHODS: tuple[Method, ...] = get_args(Method)

MOST_DRAFTED = 16
_ACCEPTED = (
    f"accepted are {', '.join(METHODS)}, and behind it acceptance=0.8, k=3 or parameters=1.2B, joined by "
    "commas: mtp,acceptance=0.85,k=1"
)
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Published:
    """A published length of accepted drafts: `tokens` that a step writes on average, of `drafted` ones and
    one more."""

    method: Method
    target: str
    drafted: int
    tokens: float
    source: str

    @property
    def acceptance(self) -> float:
        """The chance of each token, those before it being accepted, that gives as many tokens."""
        return acceptance_of(self.tokens, self.drafted)


@dataclass(frozen=True)
class DraftRequest:
    """What drafts to plan for.

    acceptance: chance of a drafted token to be accepted where those before it are; None for the published
    ones. drafted: tokens drafted a step; None for 1 to 7. parameters: of the head, without embedding and
    unembedding, which are the model's own; None for one layer of the model.
    """

    method: Method
    acceptance: float | None = None
    drafted: int | None = None
    parameters: int | None = None


def tokens_per_step(acceptance: float, drafted: int) -> float:
    """Tokens that a step writes on average: 1 + a + ... + a^k, those accepted in a row and one more
    (Leviathan et al. 2023, arXiv 2211.17192, equation 1)."""
    return sum(acceptance**accepted for accepted in range(drafted + 1))


def acceptance_of(tokens: float, drafted: int) -> float:
    """The acceptance with which `tokens_per_step` gives as many, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, drafted) < tokens else (low, middle)
    return low


@cache
def published_drafts() -> tuple[Published, ...]:
    """The published lengths of the catalogue."""
    text = (files("partita.specs") / "catalogue" / "drafts.toml").read_text(encoding="utf-8")
    return tuple(Published(**entry) for entry in tomllib.loads(text).values())


def parse_draft(text: str) -> DraftRequest:
    """Reads METHOD or METHOD,name=value,... Raises InputError (field "draft")."""
    method, *pairs = (part.strip() for part in text.split(","))
    if method not in METHODS:
        raise InputError("draft", text, _ACCEPTED)
    given = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    if len(given) < len(pairs) or given.keys() - {"acceptance", "k", "parameters"}:
        raise InputError("draft", text, _ACCEPTED)
    acceptance, drafted = given.get("acceptance"), given.get("k")
    found = DraftRequest(
        METHODS[METHODS.index(method)],
        None if acceptance is None else _share(text, acceptance),
        None if drafted is None else _drafted(text, drafted),
        _parameters(text, given["parameters"]) if "parameters" in given else None,
    )
    if found.method == "ngram" and (found.acceptance is None or found.parameters is not None):
        raise InputError("draft", text, "ngram has no head and needs acceptance=, measured on your texts")
    return found


def _share(text: str, number: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError("draft", text, "acceptance must be a number from 0 to 1")
    return share


def _drafted(text: str, number: str) -> int:
    drafted = int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 0
    if not 1 <= drafted <= MOST_DRAFTED:
        raise InputError("draft", text, f"k must be a whole number from 1 to {MOST_DRAFTED}")
    return drafted


def _parameters(text: str, number: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMB]?)", number)
    count = round(float(match[1]) * _SIZES[match[2]]) if match else 0
    if not 1 <= count <= 10**15:
        raise InputError("draft", text, "parameters must be a number above zero, such as 1.2B or 90M")
    return count
