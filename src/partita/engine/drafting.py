"""Prompt lookup: a sequence may go on as it did where its last tokens stood before, which one step verifies.

Drafts come from the prompt and the output themselves (n-gram speculation: Saxena 2023, "Prompt Lookup
Decoding"). How many of their tokens are accepted is measured all along, also of drafts that no step verifies:
the tokens drawn one by one say as well what would have been accepted. Knows tokens and seconds only: no
model, no devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, get_args

from partita.errors import InputError

Draft = Literal["off", "ngram", "auto"]
"""off: a token a step. ngram: every draft is verified. auto: those of a step where that pays."""
DRAFTS: tuple[Draft, ...] = get_args(Draft)

WIDTH = 8
"""Tokens of each sequence in a step that verifies: the last one and up to 7 drafted."""

SHORTEST, LONGEST = 2, 16
"""Tokens that have to be alike for a draft, and tokens that are compared at most."""
_COMPARED = 16
"""Earlier places that are compared for one draft, the latest first."""

_CLASSES = (5, 3, SHORTEST)
"""Lengths of a match from which on its drafts are counted together."""
_DECAY = 0.8
"""What a draft counts for beside the next one of its class."""
_RECENT = 16
"""Steps whose seconds are kept."""
_ENOUGH = 3
"""Steps of a kind that must have been timed for their seconds to count."""
_AGAIN = 32
"""After so many steps that verify comes one that does not, so that these are timed now and then."""


def check_draft(draft: object) -> Draft:
    """The same. Raises InputError (field "draft") for one that there is not."""
    if draft not in DRAFTS:
        raise InputError("draft", draft, f"accepted are {', '.join(DRAFTS)}")
    return DRAFTS[DRAFTS.index(draft)]


class Lookup:
    """Tokens of a sequence, and where in it its last ones stood before.

    Every place is chained to the one before it that follows the same two tokens (as LZ77 compressors find
    their matches), so that a token costs a few microseconds whatever the length.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self._tokens: list[int] = []
        self._latest: dict[int, int] = {}
        """The last place that follows these two tokens and has a token."""
        self._earlier: list[int] = [-1, -1]
        """Of each place the one before it that follows the same two tokens; -1 for none."""
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        place = len(self._tokens)
        if place >= 2:
            pair = self._pair()
            self._earlier.append(self._latest.get(pair, -1))
            self._latest[pair] = place
        self._tokens.append(token)

    def draft(self, most: int) -> tuple[int, list[int]]:
        """How many tokens before the end are those before the place that is copied, and `most` tokens from
        there; 0 and none where there is no such place.

        Of matches of one length the latest counts. What would be copied from beyond the end is the draft
        itself: a text that repeats itself goes on doing so.
        """
        tokens, length, source = self._tokens, 0, -1
        if len(tokens) < SHORTEST or most < 1:
            return 0, []
        place, left = self._latest.get(self._pair(), -1), _COMPARED
        while place >= 0 and left and length < LONGEST:
            found = self._alike(place)
            if found > length:
                length, source = found, place
            place, left = self._earlier[place], left - 1
        if source < 0:
            return 0, []
        copied = tokens[source : source + most]
        period = len(copied)
        while len(copied) < most:
            copied.append(copied[-period])
        return length, copied

    def _pair(self) -> int:
        return self._tokens[-2] << 32 | self._tokens[-1]

    def _alike(self, place: int) -> int:
        """How many tokens before a place are those before the end, up to `LONGEST`."""
        tokens, end = self._tokens, len(self._tokens)
        for back in range(SHORTEST + 1, min(place, LONGEST) + 1):
            if tokens[place - back] != tokens[end - back]:
                return back - 1
        return min(place, LONGEST)


class Acceptance:
    """How many tokens of a draft are accepted, by the length of its match: a mean in which later drafts count
    more, beginning with one draft of which none was."""

    def __init__(self) -> None:
        self._accepted, self._drafts = [0.0] * len(_CLASSES), [1.0] * len(_CLASSES)

    def count(self, length: int, accepted: int) -> None:
        """A draft behind a match of so many tokens. As it is accepted the match grows: what was accepted from
        where it came to a longer class counts there too."""
        for number, least in enumerate(_CLASSES):
            grown = max(0, least - length)
            if grown <= accepted and (number == _class(length) or grown):
                self._accepted[number] = self._accepted[number] * _DECAY + accepted - grown
                self._drafts[number] = self._drafts[number] * _DECAY + 1

    def expected(self, length: int, so_far: int = 0) -> float:
        """Tokens that are accepted of the next draft; `so_far` of another are, which is still going on."""
        number = _class(length)
        return (self._accepted[number] + so_far) / (self._drafts[number] + (so_far > 0))


def _class(length: int) -> int:
    return next(number for number, least in enumerate(_CLASSES) if length >= least)


@dataclass
class _Watched:
    """A draft, and how many of its tokens have come."""

    length: int
    tokens: Sequence[int]
    come: int = 0


class Writing:
    """One sequence as it is written: its lookup, and how its drafts have done."""

    def __init__(self, prompt: Sequence[int], most: int):
        self.left = most
        """Tokens that are still to be written at most."""
        self.acceptance = Acceptance()
        self._lookup, self._watched = Lookup(prompt), None

    def push(self, token: int) -> None:
        self._lookup.push(token)
        self.left -= 1
        watched = self._watched
        if watched is None:
            return
        alike = token == watched.tokens[watched.come]
        watched.come += alike
        if not alike or watched.come == len(watched.tokens):
            self.acceptance.count(watched.length, watched.come)
            self._watched = None

    def draft(self, most: int) -> tuple[list[int], float]:
        """Up to `most` drafted tokens, as many as can still be written before the last, and how many of them
        are expected to be accepted."""
        length, tokens = self._lookup.draft(min(most, self.left - 1))
        if not tokens:
            return [], 0.0
        watched = self._watched
        if watched is None:
            watched = self._watched = _Watched(length, tokens)
        # of a repetition the match grows with each token: what has come speaks for the longer one too
        return tokens, min(self.acceptance.expected(length, watched.come), len(tokens))


@dataclass
class Pace:
    """Seconds of a step that verifies drafts beside those of one that does not.

    priced: their ratio by the cost model, which counts until steps of both kinds have been timed: then it is
    that of the medians of the last.
    """

    priced: float
    _single: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _verified: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def timed(self, seconds: float, verified: bool) -> None:
        (self._verified if verified else self._single).append(seconds)

    @property
    def single(self) -> float:
        """Seconds of a step of one token; 0 until enough have been timed: the first may have compiled."""
        return median(self._single) if len(self._single) >= _ENOUGH else 0.0

    @property
    def ratio(self) -> float:
        if min(len(self._single), len(self._verified)) < _ENOUGH:
            return self.priced
        return median(self._verified) / median(self._single)


class Drafter:
    """Drafts of the sequences of a batch, and whether verifying them in the next step pays.

    A step writes a token for each sequence in t1 seconds; one that verifies writes 1 + a tokens, a of them
    accepted drafts, in tw. So it pays where the mean of 1 + a over all sequences is above tw / t1.
    """

    def __init__(self, draft: Draft, width: int, pace: Pace):
        self.draft, self.width, self.pace = draft, width, pace
        self._writing: dict[int, Writing] = {}
        self.gain = 0.0
        """Tokens for the time of one in the next step, as expected; above 1 it pays."""
        self.steps: list[int] = []
        """Tokens that each step wrote, of those that verified drafts."""
        self._in_a_row = 0

    def begin(self, slot: int, prompt: Sequence[int], most: int) -> None:
        if self.draft != "off":
            self._writing[slot] = Writing(prompt, most)

    def push(self, slot: int, token: int) -> None:
        if self.draft != "off":
            self._writing[slot].push(token)

    def end(self, slot: int) -> None:
        self._writing.pop(slot, None)

    @property
    def slots(self) -> list[int]:
        """Those that are written."""
        return list(self._writing)

    def drafts(self) -> Mapping[int, list[int]]:
        """Drafts to verify in the next step, by slot; none where that does not pay."""
        found, expected = {}, 0.0
        for slot, writing in self._writing.items():
            tokens, accepted = writing.draft(self.width - 1)
            if tokens:
                found[slot] = tokens
                expected += accepted
        if not found:
            self.gain = 0.0
            return found
        self.gain = (1 + expected / len(self._writing)) / self.pace.ratio
        if self.draft == "ngram":
            return found
        pays = self.gain > 1 and self._in_a_row < _AGAIN
        self._in_a_row = self._in_a_row + 1 if pays else 0
        return found if pays else {}

    @property
    def seconds_to_save(self) -> float:
        """What drafts save on what is left to be written, if they go on as they do."""
        left = max((writing.left for writing in self._writing.values()), default=0)
        return left * self.pace.single * (1 - 1 / self.gain) if self.gain > 1 else 0.0
