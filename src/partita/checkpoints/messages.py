"""The messages of a chat: what is certainly wrong with them, and what a template is given of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.errors import InputError

Message = Mapping[str, Any]
"""One turn of a chat: `role` ("system", "user", "assistant", "tool", …) and `content`, a text or a list of
parts such as {"type": "text", "text": "Hi"}; an assistant's may have `tool_calls` or `reasoning_content`
instead. Other keys are the template's to read."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that a message's reasoning goes by, the usual one first."""
_INSTEAD = ("tool_calls", "function_call", *_REASONING)
"""Keys beside which a message needs no content."""
_OTHER_MEDIA = ("image", "audio", "video", "file")


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as templates are given them (see `for_template`).

    Raises InputError (field "messages[i]") for one that no template could take.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InputError("messages", repr(messages)[:80], "a list of messages is accepted")
    if not messages:
        raise InputError("messages", None, "a chat needs one message or more")
    for i, message in enumerate(messages):
        if wrong := _wrong(message):
            raise InputError(f"messages[{i}]", repr(message)[:80], wrong)
    return [for_template(message) for message in messages]


def _wrong(message: object) -> str | None:
    if not isinstance(message, Mapping):
        return "each message is an object such as {'role': 'user', 'content': 'Hi'}"
    if not isinstance(message.get("role"), str):
        return "needs a text `role`"
    content = message.get("content")
    if content is None:
        if any(message.get(key) for key in _INSTEAD):
            return None
        return "needs `content`, a text or a list of parts, or else `tool_calls` or `reasoning_content`"
    if isinstance(content, str | Mapping):  # some templates take a tool's result as an object
        return None
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        return "its `content` must be a text or a list of parts"
    for part in content:
        if wrong := _wrong_part(part):
            return wrong
    return None


def _wrong_part(part: object) -> str | None:
    if isinstance(part, str):
        return None
    if not isinstance(part, Mapping):
        return "parts of its `content` must be objects such as {'type': 'text', 'text': 'Hi'}"
    kind = part.get("type")
    if isinstance(kind, str) and any(medium in kind for medium in _OTHER_MEDIA):
        return f"a part of type {kind!r} is not read; the models run here read text"
    if kind == "text" and not isinstance(part.get("text"), str):
        return "a part of type 'text' needs a text `text`"
    return None


def for_template(message: Message) -> dict[str, Any]:
    """A message without keys that are None, its reasoning under the names that templates read: as
    transformers hands messages to them (5.24, `_normalize_chat_messages` and `_alias_reasoning_fields`)."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def in_parts(message: Message) -> bool:
    """Whether its content is a list of parts that are all text."""
    content = message.get("content")
    return isinstance(content, list) and all(isinstance(_text(part), str) for part in content)


def joined(message: Message) -> Message:
    """The same with its parts as one text, a line for each."""
    if not in_parts(message):
        return message
    return {**message, "content": "\n".join(_text(part) for part in message["content"])}


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) else part
