"""A chat's messages to the text that a model answers, by the template that comes with its checkpoint.

What comes out is what transformers' `apply_chat_template` makes of the same messages. A template that cannot
be read stops chats alone: nothing is compiled before a chat is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.checkpoints.messages import Message, checked, in_parts, joined
from partita.checkpoints.template_renderer import RENDERER
from partita.errors import InputError, one_line

_FIELD = "tokenizer.chat_template"
_MOST_CHARACTERS = 1 << 20
_OWN = ("messages", "tools", "documents")
"""Variables that have arguments of their own."""
TOOL_USE = "tool_use"
"""The name of the template that is for chats with tools, where a checkpoint has several."""


class TemplateLimit(InputError):
    """A template that takes more time, memory or text than a chat needs."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template with the special tokens it may name.

    named: others of the same checkpoint by their names. problem: why there is no source that can be used.
    """

    source: str
    special_tokens: Mapping[str, str]
    named: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    def prepare(self) -> None:
        """Starts what renders templates, so that the first chat need not wait for it; returns at once."""
        RENDERER.start()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the messages, up to where the assistant's answer begins.

        tools: JSON schemas of functions that the model may call. documents: texts that it may quote.
        variables: others that the template reads, such as `enable_thinking`; with `add_generation_prompt`
        False the beginning of the answer is left out.

        Content in parts is joined to one text for a template that takes only text. Raises InputError: field
        "tokenizer.chat_template" for a template that is none or (`TemplateLimit`) has no end, "messages" for
        messages it does not accept, "messages[i]" for one that none would, "tools", "documents" or
        "chat_template_kwargs" for those.
        """
        chat = checked(messages)
        for name, given in (("tools", tools), ("documents", documents)):
            _check_objects(name, given)
        if taken := sorted((variables or {}).keys() & set(_OWN)):
            raise InputError("chat_template_kwargs", taken[0], "is given by an argument of its own")
        others = {
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": True,
            **self.special_tokens,
            **(variables or {}),
        }
        source = self.named.get(TOOL_USE, self.source) if tools is not None else self.source
        found = self._rendered(source, {**others, "messages": chat})
        parts = [message["content"] for message in chat if in_parts(message)]
        printed = "refused" in found or any(repr(content) in found.get("text", "") for content in parts)
        if parts and printed:
            as_texts = self._rendered(source, {**others, "messages": [joined(message) for message in chat]})
            found = as_texts if "text" in as_texts else found
        if "invalid" in found:
            raise InputError(_FIELD, None, f"is not a valid template: {found['invalid']}")
        if "limit" in found:
            raise TemplateLimit(_FIELD, None, found["limit"])
        if "refused" in found:
            problem = f"not accepted by the model's chat template: {found['refused']}"
            raise InputError("messages", None, problem)
        return found["text"]

    def _rendered(self, source: str, variables: Mapping[str, Any]) -> dict[str, str]:
        if self.problem is not None:
            return {"invalid": self.problem}
        if len(source) > _MOST_CHARACTERS:
            return {"invalid": f"it has {len(source):,} characters; at most {_MOST_CHARACTERS:,} are read"}
        try:
            return RENDERER.render(source, variables)
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"holds what JSON has no form for: {one_line(error)}"
            raise InputError("messages", None, problem) from None


def _check_objects(name: str, given: object) -> None:
    if given is None:
        return
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise InputError(name, repr(given)[:80], "a list of objects is accepted")
    for i, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise InputError(f"{name}[{i}]", repr(one)[:80], "must be an object")
