"""Text of ids that come one by one: what the library's decoder makes of each beside those before it.

A decoder is a chain of steps over a list of tokens, some of which look at a token's neighbours: bytes are put
together to characters, a space is taken from the first token, a replacement may reach over several tokens. So
a token is decoded with the last few before it, and what they give alone is left out of what comes back. How
many are enough, and how much of the end may still change, follows from the steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import tokenizers

from partita.checkpoints.tokenizer_json import steps
from partita.checkpoints.tokenizer_library import decode

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f+][0-9A-Fa-f]>")
"""What ByteFallback reads as a byte: Rust, which reads the two characters, takes "+A" for the number 10."""
_CHARACTER = 3
"""A character that is not whole yet has at most so many bytes, and so at most so many tokens."""
_BY_TOKEN = ("Metaspace", "WordPiece", "CTC", "BPEDecoder", "Replace")
"""Steps that decode each token alone; after tokens are joined a Metaspace maps character by character."""
_MOST_BEFORE = 64
"""A decoder that needs more tokens than this before a token gives its text at the end."""


@dataclass(frozen=True)
class DecoderSteps:
    """What matters of a decoder to one who hands it tokens one by one.

    before: tokens with text that settle how the next one is decoded. lag: characters at the end that a next
    token may change; None where all may change. bytes_end: whether text may end inside a character. runs:
    whether tokens `<0x..>` in a row are decoded together, to U+FFFD each where they are not UTF-8 all
    together; then a row is complete once another token comes.
    """

    before: int
    lag: int | None
    bytes_end: bool
    runs: bool


def steps_of(decoder: Mapping[str, Any] | None) -> DecoderSteps:
    """Reads the JSON form of a decoder of the `tokenizers` library; None joins tokens by spaces.

    Up to a step that makes one text of all tokens, each token is decoded alone, but for being the first or
    last, or the same as the one before. After it a replacement of a text reaches over as many characters as
    that text has. What no rule here bounds (patterns, texts that may overlap with themselves, steps that are
    not known) has no lag: all text may change.
    """
    lag, joined, levels, runs, stripped = 0, False, False, False, 0
    for step in steps(decoder):
        kind = step.get("type")
        if kind in ("Fuse", "ByteLevel"):
            lag = None if kind == "ByteLevel" and joined else lag
            joined, levels = True, levels or kind == "ByteLevel"
        elif kind == "Strip":
            stripped += step.get("start", 0)
            lag = None if step.get("stop", 0) else lag
        elif kind == "ByteFallback" and not joined:
            runs = True
        elif kind == "Replace" and joined:
            lag = _lag_after(lag, step.get("pattern", {}).get("String"), step.get("content", ""), levels)
        elif kind not in (("Metaspace",) if joined else _BY_TOKEN):
            lag = None
        if lag is None:
            break
    each = _CHARACTER + 1 if levels or runs else 1  # tokens of a character
    before = _CHARACTER + 1 + each * (stripped + (lag or 0))
    if before > _MOST_BEFORE:
        lag = None
    return DecoderSteps(min(before, _MOST_BEFORE), lag, levels, runs)


def _lag_after(lag: int | None, pattern: str | None, content: str, levels: bool) -> int | None:
    """What may change at the end once every `pattern` in the text has become `content`."""
    if lag is None or not pattern or (levels and _UNKNOWN in pattern):
        return None
    if any(pattern.startswith(pattern[start:]) for start in range(1, len(pattern))):
        return None  # it overlaps with itself: where matches lie depends on all that is before
    return (lag + len(pattern) - 1) * max(1, len(content))


class TextStream:
    """Text of ids that come one by one, a character given out only once no token can change it.

    The pieces and the `end` join to what the library decodes all the ids to, where `after`, ids before them,
    is left out. A token is decoded with a bounded number of others, however long the text is.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        steps: DecoderSteps,
        hidden: Set[int] = frozenset(),
        after: Iterable[int] = (),
    ):
        """steps: those of the backend's decoder. hidden: ids that add no text. after: ids that the text goes
        on from."""
        self._backend, self._steps, self._hidden = backend, steps, hidden
        self._visible: dict[int, bool] = {}
        shown = [token for token in after if token not in hidden]
        self._window = shown if steps.lag is None else self._context(shown)
        text = self._decode(self._window)
        self._given = len(text) - self._begun(text)
        """Characters of the window's text that have been given out."""

    def hidden(self, token: int) -> str:
        """The text of a token where `push` gives none of it because it is hidden."""
        return (self._backend.id_to_token(token) or "") if token in self._hidden else ""

    def push(self, token: int) -> str:
        """The text that this token completes, often empty in the middle of a character."""
        if token in self._hidden:
            return ""
        if self._steps.lag is None or self._in_run(token):
            self._window.append(token)
            return ""
        last_two = (*self._window[-1:], token)
        if len(last_two) == 2 and not any(map(self._shown, last_two)):
            self._window.pop()  # of tokens without text the last is enough
        self._window.append(token)
        text = self._decode(self._window)
        certain = self._certain(text)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._window) > 2 * self._steps.before:
            self._window = self._context(self._window)
            self._given -= len(text) - len(self._decode(self._window))
        return piece

    def end(self) -> str:
        """What is left if no more ids come: U+FFFD where they stop inside a character, else mostly none."""
        return self._decode(self._window)[self._given :]

    def _context(self, ids: Sequence[int]) -> list[int]:
        """The fewest last ids that settle how the next is decoded."""
        found: list[int] = []
        shown, in_run = 0, True
        for token in reversed(ids):
            in_run = in_run and self._in_run(token)
            if shown >= self._steps.before and not in_run:
                break
            found.append(token)
            shown += self._shown(token)
        return found[::-1]

    def _begun(self, text: str) -> int:
        """How many U+FFFD at the end of the window's text stand for a character that is not whole yet."""
        run = next((i for i, token in enumerate(reversed(self._window)) if not self._in_run(token)), None)
        most = (len(self._window) if run is None else run) or int(self._steps.bytes_end)
        return min(most, len(text) - len(text.rstrip(_UNKNOWN)))

    def _certain(self, text: str) -> int:
        """How many characters of the window's text no token can change."""
        if self._steps.bytes_end and text.endswith(_UNKNOWN):
            return max(0, len(text) - 1 - (self._steps.lag or 0))
        return max(0, len(text) - (self._steps.lag or 0))

    def _in_run(self, token: int) -> bool:
        if not self._steps.runs:
            return False
        text = self._backend.id_to_token(token)
        return text is not None and _BYTE_PIECE.fullmatch(text) is not None

    def _shown(self, token: int) -> bool:
        """Whether a token has text where others come before it."""
        if token not in self._visible:
            self._visible[token] = bool(self._decode([token] * self._steps.before))
        return self._visible[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._backend, ids)


def decoder_of(backend: tokenizers.Tokenizer) -> Mapping[str, Any] | None:
    """The JSON form of a backend's decoder."""
    return None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
