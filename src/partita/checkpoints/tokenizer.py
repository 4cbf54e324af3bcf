"""Text to token ids and back, whole or as a stream, for byte-level BPE vocabularies.

Knows nothing about where the vocabulary was stored, nor about models.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import tokenizers

from partita.checkpoints.chat_template import ChatTemplate, Message
from partita.errors import InputError


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2).

    A byte that prints in Latin-1 stands for itself; the others, in order, take the characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


@dataclass(frozen=True, eq=False, repr=False)
class Tokenizer:
    """A vocabulary with the rules that split text into it."""

    backend: tokenizers.Tokenizer
    tokens: Sequence[str]  # by id
    special: Set[int]
    """Ids of control tokens, recognised in text by their own spelling and hidden by `decode`."""
    bos_id: int | None = None
    eos_ids: Set[int] = frozenset()
    """Ids after any of which generation ends."""
    add_bos: bool = False
    """Whether `encode` begins with the bos token, unless the text already does."""
    chat_template: ChatTemplate | None = None

    def encode(self, text: str) -> list[int]:
        """The ids of a text; InputError (field "prompt") for text that is not valid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = text.encode(errors="backslashreplace").decode()[:40]
            raise InputError(
                "prompt", shown, "is not valid Unicode; give text without lone surrogates"
            ) from None
        ids = self.backend.encode(text, add_special_tokens=False).ids
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], show_special: bool = False) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD. Inverse of `encode`."""
        stream = self.stream(show_special)
        return "".join([*(stream.push(token) for token in ids), stream.end()])

    def stream(self, show_special: bool = False) -> TextStream:
        """Decodes ids one at a time; the pieces join to what `decode` gives for all of them."""
        return TextStream(self, show_special)

    def chat(self, messages: Sequence[Message]) -> str:
        """The prompt text of a chat, up to where the answer begins; InputError without a chat template."""
        if self.chat_template is None:
            raise InputError("messages", None, "the model has no chat template; give a plain prompt")
        return self.chat_template.render(messages)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for, perhaps only part of a character.

        Raises InputError (field "token") for an id outside the vocabulary.
        """
        if not 0 <= token < len(self.tokens):
            raise InputError("token", token, f"must be from 0 to {len(self.tokens) - 1}")
        text = self.tokens[token]
        if token in self.special or not all(character in _BYTES for character in text):
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
