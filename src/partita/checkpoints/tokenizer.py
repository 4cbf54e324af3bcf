"""Text to token ids and back, whole or as a stream; vocabularies are byte-level or of SentencePiece."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import tokenizers

from partita.checkpoints.chat_template import ChatTemplate
from partita.checkpoints.end_tokens import find_ends
from partita.checkpoints.messages import Message
from partita.errors import InputError


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2).

    A byte that prints in Latin-1 stands for itself; the others, in order, take the characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling(Enum):
    """How tokens spell text."""

    BYTES = "bytes"
    """Each character stands for a byte, as GPT-2 has it."""
    PIECES = "pieces"
    """As SentencePiece has it: a low line ▁ stands for a space, <0x0A> for one byte."""
    PIECES_AFTER_SPACE = "pieces after a space"
    """The same, where `encode` puts a space before the text and `decode` takes it away."""


@dataclass(frozen=True, eq=False, repr=False)
class Tokenizer:
    """A vocabulary with the rules that split text into it."""

    backend: tokenizers.Tokenizer
    tokens: Sequence[str]  # by id
    special: Set[int]
    """Ids of control tokens, recognised in text by their own spelling and hidden by `decode`."""
    bos_id: int | None = None
    named_ends: Mapping[int, str] = field(default_factory=dict)
    """Ids of tokens that the files name as ends of a text, each with where."""
    add_bos: bool = False
    """Whether `encode` begins with the bos token, unless the text already does."""
    chat_template: ChatTemplate | None = None
    spelling: Spelling = Spelling.BYTES

    @cached_property
    def ends(self) -> Mapping[int, Sequence[str]]:
        """Ids after any of which generation ends, each with the reasons why; see `end_tokens`.

        Found when first asked for, as the chat template is tried for it."""
        whole = control = {self.tokens[i]: i for i in self.special}
        if self.chat_template is not None:
            added = self.backend.get_added_tokens_decoder()
            whole = {token.content: i for i, token in added.items()} | control
        return find_ends(self.named_ends, control, whole, self.chat_template)

    @property
    def eos_ids(self) -> Set[int]:
        """Ids after any of which generation ends."""
        return frozenset(self.ends)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; InputError (field "prompt") for text that is not valid Unicode."""
        ids = self._split(text)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def _split(self, text: str) -> list[int]:
        """The ids of a text as it is."""
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = text.encode(errors="backslashreplace").decode()[:40]
            raise InputError(
                "prompt", shown, "is not valid Unicode; give text without lone surrogates"
            ) from None
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], show_special: bool = False) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD. Inverse of `encode`."""
        stream = self.stream(show_special)
        text = "".join([*(stream.push(token) for token in ids), stream.end()])
        return text.removeprefix(" ") if self.spelling is Spelling.PIECES_AFTER_SPACE else text

    def stream(self, show_special: bool = False) -> TextStream:
        """Decodes ids that go on from others, one at a time; the pieces join to what `decode` gives for all,
        but for the space that it may take away from the start."""
        return TextStream(self, show_special)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat, up to where the answer begins, as the checkpoint's template has it.

        tools: JSON schemas of functions that may be called. documents: texts that may be quoted. variables:
        others that the template reads, such as `enable_thinking`. Raises InputError as `ChatTemplate.render`
        does, and without a chat template (field "messages").
        """
        if self.chat_template is None:
            raise InputError("messages", None, "the model has no chat template; give a plain prompt")
        return self.chat_template.render(messages, tools, documents, variables)

    def chat_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of `chat`, with a bos token only where the template writes one.

        >>> engine = partita.Engine.load("smollm2-135m")  # doctest: +SKIP
        >>> ids = engine.tokenizer.chat_ids([{"role": "user", "content": "Hi"}])  # doctest: +SKIP
        >>> print(*engine.stream(ids, max_tokens=32), sep="")  # doctest: +SKIP
        """
        return self._split(self.chat(messages, tools, documents, variables))

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for, perhaps only part of a character.

        Raises InputError (field "token") for an id outside the vocabulary.
        """
        if not 0 <= token < len(self.tokens):
            raise InputError("token", token, f"must be from 0 to {len(self.tokens) - 1}")
        text = self.tokens[token]
        if token in self.special:
            return text.encode()
        if self.spelling is not Spelling.BYTES:
            byte = _BYTE_PIECE.fullmatch(text)
            return bytes.fromhex(byte[1]) if byte else text.replace("▁", " ").encode()
        if not all(character in _BYTES for character in text):
            return text.encode()
        return bytes(_BYTES[character] for character in text)


class TextStream:
    """Text of ids that come one by one, a character given out only once all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer, show_special: bool):
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that this token completes, often empty in the middle of a character."""
        if token in self._tokenizer.special and not self._show_special:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def end(self) -> str:
        """What is left: U+FFFD where the ids stopped inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)
