"""What clients are sent: the objects of OpenAI's API, whole and in pieces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from partita.engine.stopping import Likely, Piece
from partita.server.forms import CallText

Finish = Literal["stop", "length", "tool_calls"]


class CachedTokens(BaseModel):
    """Tokens of the prompt that did not have to be read."""

    cached_tokens: int = 0


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens = CachedTokens()


class CompletionLogprobs(BaseModel):
    """Log-probabilities in the shape of completions: a list entry for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Finish | None = None
    token_ids: list[int] | None = None


class Completion(BaseModel):
    """A completion, or, with `finish_reason` null, a piece of one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities in the shape of chats."""

    content: list[TokenLogprob]


class CalledFunction(BaseModel):
    """A tool's name, and its arguments as JSON; of a piece what it adds to these."""

    name: str | None = None
    arguments: str


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolCallPiece(BaseModel):
    """A piece of a call; the first says which it is."""

    index: int = 0
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    """An answer to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ChatPiece(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    token_ids: list[int] | None = None


class ChatChunk(BaseModel):
    """A piece of an answer to a chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatPiece]
    usage: Usage | None = None


TextOf = Callable[[int], str]
"""The text of one token, special ones too."""


@dataclass
class Choice:
    """One sample as it is written."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    likely: list[Likely] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        if piece.token is not None:
            self.tokens.append(piece.token)
            self.offsets.append(len(self.text))
            if piece.likely is not None:
                self.likely.append(piece.likely)
        self.text += piece.text
        self.finish = piece.finish or self.finish


@dataclass(frozen=True)
class Writer:
    """Writes the objects of one request.

    chat: in the shape of chats, else of completions. logprobs, token_ids: whether they are asked for. call:
    whether the text is that of a call, see `forms.forced_call`.
    """

    chat: bool
    model: str
    text_of: TextOf
    logprobs: bool = False
    token_ids: bool = False
    call: Literal["required", "named"] | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    _calls: dict[int, CallText] = field(default_factory=dict)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> BaseModel:
        if not self.chat:
            return Completion(**self._head(), choices=[self._completion(c) for c in choices], usage=usage)
        found = [
            ChatChoice(
                index=choice.index,
                message=self._message(choice),
                finish_reason=self._finish(choice.finish) or "stop",
                **self._chat_details(choice),
            )
            for choice in choices
        ]
        return ChatCompletion(**self._head(), choices=found, usage=usage)

    def piece(self, choice: Choice, first: bool = False) -> BaseModel | None:
        """What `choice` holds, as a piece of the one with its index; the first of a chat says who speaks.
        None where there is nothing to tell."""
        more = first or choice.finish or choice.likely or self.token_ids
        if not self.chat:
            if not more and not choice.text:
                return None
            return Completion(**self._head(), choices=[self._completion(choice)])
        delta = Delta(role="assistant" if first else None)
        if self.call is None:
            delta.content = choice.text
        else:
            delta.tool_calls = self._call_piece(choice)
        if not (more or delta.content or delta.tool_calls):
            return None
        details, finish = self._chat_details(choice), self._finish(choice.finish)
        found = ChatPiece(index=choice.index, delta=delta, finish_reason=finish, **details)
        return ChatChunk(**self._head(), choices=[found])

    def _finish(self, finish: Finish | None) -> Finish | None:
        """As in OpenAI's API a call that the model chose ends as one, and one that was named by a stop."""
        return "tool_calls" if finish == "stop" and self.call == "required" else finish

    def _message(self, choice: Choice) -> ChatMessage:
        if self.call is None:
            return ChatMessage(content=choice.text)
        call = CallText()
        call.push(choice.text, last=True)
        if call.name is None:  # cut short before the name was there
            return ChatMessage(content=choice.text)
        function = CalledFunction(name=call.name, arguments=call.arguments)
        return ChatMessage(content=None, tool_calls=[ToolCall(id=self._call_id(choice), function=function)])

    def _call_piece(self, choice: Choice) -> list[ToolCallPiece] | None:
        call = self._calls.setdefault(choice.index, CallText())
        known, added = call.name, call.push(choice.text, last=choice.finish is not None)
        if known is None and call.name is not None:
            function = CalledFunction(name=call.name, arguments=added)
            return [ToolCallPiece(id=self._call_id(choice), type="function", function=function)]
        return [ToolCallPiece(function=CalledFunction(arguments=added))] if added else None

    def _call_id(self, choice: Choice) -> str:
        return f"call_{self.id}{choice.index}"

    def last(self, usage: Usage) -> BaseModel:
        """The piece without choices, at the end of all."""
        kind = ChatChunk if self.chat else Completion
        return kind(**self._head(), choices=[], usage=usage)

    def _head(self) -> dict[str, Any]:
        kind = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{kind}-{self.id}", "created": self.created, "model": self.model}

    def _completion(self, choice: Choice) -> CompletionChoice:
        logprobs = None
        if self.logprobs:
            top = [
                {self.text_of(token): value for token, value in each.alternatives} for each in choice.likely
            ]
            logprobs = CompletionLogprobs(
                tokens=[self.text_of(token) for token in choice.tokens],
                token_logprobs=[each.logprob for each in choice.likely],
                top_logprobs=top,
                text_offset=choice.offsets,
            )
        ids = choice.tokens if self.token_ids else None
        return CompletionChoice(
            index=choice.index,
            text=choice.text,
            logprobs=logprobs,
            finish_reason=choice.finish,
            token_ids=ids,
        )

    def _chat_details(self, choice: Choice) -> dict[str, Any]:
        found: dict[str, Any] = {"token_ids": choice.tokens if self.token_ids else None}
        if self.logprobs:
            pairs = zip(choice.tokens, choice.likely, strict=True)
            content = [
                TokenLogprob(
                    **self._one(token, each.logprob),
                    top_logprobs=[TopLogprob(**self._one(t, value)) for t, value in each.alternatives],
                )
                for token, each in pairs
            ]
            found["logprobs"] = ChatLogprobs(content=content)
        return found

    def _one(self, token: int, value: float) -> dict[str, Any]:
        text = self.text_of(token)
        return {"token": text, "logprob": value, "bytes": list(text.encode(errors="replace"))}
