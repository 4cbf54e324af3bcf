"""Text to token ids and back, whole or as a stream; what splits and joins is the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tokenizers

from partita.checkpoints.chat_template import ChatTemplate
from partita.checkpoints.end_tokens import find_ends
from partita.checkpoints.messages import Message
from partita.checkpoints.text_stream import DecoderSteps, TextStream, decoder_of, steps_of
from partita.checkpoints.tokenizer_library import Failure, attempt, attempt_in_time, decode
from partita.errors import InputError


class Tokens(Sequence[str]):
    """The tokens of a vocabulary by id, looked up when asked for; one that is not there has no text."""

    def __init__(self, backend: tokenizers.Tokenizer, count: int):
        self._backend, self._count = backend, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._backend.id_to_token(index % self._count) or ""


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
    prefix: str = ""
    """What `encode` puts before a text, and after each control token in it."""
    watched: bool = False
    """Whether the patterns that split a text are of a kind that may take long."""

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
        """The ids of a text.

        Raises InputError (field "prompt") for text that is not valid Unicode, that holds a token beyond the
        model's vocabulary, or that the tokenizer fails at.
        """
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
        run = attempt_in_time if self.watched else attempt
        try:
            ids = run(lambda: [i for part in self._parts(text) for i in self._ids(part)])
        except Failure as failure:
            message = f"cannot be split by the model's tokenizer, whose pattern fails at it: {failure}"
            raise InputError("prompt", f"{text[:40]!r}", message) from None
        if ids and max(ids) >= len(self.tokens):
            token = self.backend.id_to_token(max(ids))
            message = f"is a token of the tokenizer, but not one of the model's {len(self.tokens)}"
            raise InputError("prompt", token, message)
        return ids

    def _ids(self, part: str) -> list[int]:
        if self.watched:  # a batch lets other threads run meanwhile, such as the one that watches
            return self.backend.encode_batch_fast([part], add_special_tokens=False)[0].ids
        return self.backend.encode(part, add_special_tokens=False).ids

    def _parts(self, text: str) -> Iterator[str]:
        """A text cut at its control tokens, each part but those with the prefix before it."""
        if not self.prefix:
            yield text
            return
        for place, part in enumerate(self._control.split(text)):
            if part:
                yield part if place % 2 else self.prefix + part

    @cached_property
    def _control(self) -> re.Pattern[str]:
        texts = sorted(filter(None, (self.tokens[i] for i in self.special)), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, texts))})" if texts else "((?!))")

    def decode(self, ids: Iterable[int], show_special: bool = False) -> str:
        """The text of some ids, as the `tokenizers` library has it; bytes that are no UTF-8 become U+FFFD.

        show_special: control tokens too. Raises InputError (field "token") for an id that the model does not
        have.
        """
        ids = list(ids)
        for token in ids:
            self._check(token)
        return decode(self.backend, ids if show_special else [i for i in ids if i not in self.special])

    def stream(self, show_special: bool = False, after: Iterable[int] = ()) -> TextStream:
        """Decodes ids one at a time. The pieces join to what `decode` gives for all; where the ids go on from
        others, `after`, to what they add to the text of those."""
        hidden = frozenset() if show_special else self.special
        return TextStream(self.backend, self._steps, hidden, after)

    @cached_property
    def _steps(self) -> DecoderSteps:
        return steps_of(decoder_of(self.backend))

    def _check(self, token: int) -> None:
        if not 0 <= token < len(self.tokens):
            raise InputError("token", token, f"must be from 0 to {len(self.tokens) - 1}")

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
