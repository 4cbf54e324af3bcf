"""Where a text ends: stop texts over a stream of pieces, tokens that end it, and length.

Knows tokens and text only: no logits, batches or devices.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, Protocol

from partita.specs.sampling import Sampling

Finish = Literal["length", "stop"]


@dataclass(frozen=True)
class Likely:
    """A token's log-probability by the model itself, before biases, penalties and temperature; and the
    likeliest tokens with theirs, the likeliest first."""

    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """What one token adds to a text. The last says why the text ends; it has no token where that was why."""

    token: int | None
    text: str
    finish: Finish | None = None
    likely: Likely | None = None


class Words(Protocol):
    """Turns tokens into text, one by one; see `checkpoints.text_stream.TextStream`."""

    def push(self, token: int) -> str: ...

    def hidden(self, token: int) -> str:
        """The text of a token of which `push` gives none because it is hidden."""
        ...

    def end(self) -> str:
        """What is left where no more tokens come; some may."""
        ...


class Numbers:
    """The text of tokens where there is no tokenizer: their ids."""

    def hidden(self, token: int) -> str:
        return ""

    def push(self, token: int) -> str:
        return f"{token} "

    def end(self) -> str:
        return ""


@dataclass
class Ending:
    """One continuation as it is written: takes tokens until there is a `finish`."""

    request: Sampling
    words: Words = field(default_factory=Numbers)
    eos_ids: Set[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    """Those written: without the one that ended the text, with those of a stop text."""
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self._stops = StopTexts(self.request.stop)
        self._come = 0
        """Characters that `words` has given."""
        self._hidden: list[tuple[int, str]] = []
        """Texts of hidden tokens behind text that `words` still holds back, and behind which character."""
        ends = () if self.request.ignore_eos else self.eos_ids
        self._ends = frozenset([*ends, *self.request.stop_token_ids])

    def push(self, token: int, likely: Likely | None = None) -> Piece:
        """The piece this token adds. Text is held back while it may be the beginning of a stop text, and
        nothing of one is given out; how the text is cut into tokens makes no difference.

        Raises ValueError once the text has ended.
        """
        if self.finish is not None:
            raise ValueError(f"the text has ended ({self.finish})")
        if token in self._ends:
            self.finish = "stop"
            return Piece(None, self._rest(), self.finish)
        self.tokens.append(token)
        if hidden := self.words.hidden(token):
            text = self._hide(hidden)
        else:
            text = self._push(self.words.push(token))
        if self._stops.found:
            self.finish = "stop"
        elif len(self.tokens) >= self.request.max_tokens:
            text += self._rest()
            self.finish = "stop" if self._stops.found else "length"
        return Piece(token, text, self.finish, likely)

    def close(self) -> Piece:
        """Ends the text here, as after a stop: what is left of it."""
        self.finish = "stop"
        return Piece(None, self._rest(), self.finish)

    def _hide(self, hidden: str) -> str:
        """Takes the text of a hidden token. Where that completes a stop text, what `words` holds back is
        text before it, and given out too."""
        held = self.words.end()
        self._hidden.append((self._come + len(held), hidden))
        if not held:
            return self._push("")
        before = self._stops, self._come, self._hidden
        self._stops, self._hidden = deepcopy(self._stops), list(self._hidden)
        text = self._push(held)
        if self._stops.found:
            return text
        self._stops, self._come, self._hidden = before
        return ""

    def _push(self, text: str) -> str:
        """What can be given out once `words` has given this text, with the hidden texts that stand in it."""
        given, begin = "", self._come
        self._come += len(text)
        while self._hidden and self._hidden[0][0] <= self._come:
            place, hidden = self._hidden.pop(0)
            given += self._stops.push(text[: place - begin]) + self._stops.push(hidden, shown=False)
            text, begin = text[place - begin :], place
        return given + self._stops.push(text)

    def _rest(self) -> str:
        """What is left to give out when no more tokens come."""
        text = self._push(self.words.end())
        return text if self._stops.found else text + self._stops.end()


class StopTexts:
    """Passes text on up to the first of some stop texts, and holds back what may be the beginning of one.

    Of several the one that is complete first counts, of those complete at once the longest. Text that is not
    shown, that of a special token, counts as it stands in the text and is not passed on.
    """

    def __init__(self, stops: Sequence[str]):
        self._matches = [_Match(stop) for stop in stops]
        self._held: list[str] = []
        """Characters that are held back; one that is not shown is empty."""
        self.found = False

    def push(self, text: str, shown: bool = True) -> str:
        """What can be given out now; nothing once a stop text has been found."""
        if self.found or not text:
            return ""
        if not self._matches:
            return text if shown else ""
        for character in text:
            self._held.append(character if shown else "")
            for match in self._matches:
                match.push(character)
            if complete := [match.length for match in self._matches if match.complete]:
                self.found = True
                before = self._release(max(complete))
                self._held.clear()
                return before
        return self._release(max(match.length for match in self._matches))

    def end(self) -> str:
        """What was held back, once no more text comes."""
        return "" if self.found else self._release(0)

    def _release(self, keep: int) -> str:
        """All that is held but the last `keep` characters, which are held on."""
        count = len(self._held) - keep
        given = "".join(self._held[:count])
        del self._held[:count]
        return given


class _Match:
    """How many of a stop text's first characters are the last that came (Knuth, Morris and Pratt 1977)."""

    def __init__(self, stop: str):
        self._stop, self.length = stop, 0
        self._shorter = [0]
        """For each number of characters the next smaller one that may be the last that came too."""
        for character in stop[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    @property
    def complete(self) -> bool:
        return self.length == len(self._stop)

    def push(self, character: str) -> None:
        self.length = self._after(self.length, character)

    def _after(self, length: int, character: str) -> int:
        while length and (length == len(self._stop) or self._stop[length] != character):
            length = self._shorter[length - 1]
        return length + 1 if self._stop[length] == character else 0
