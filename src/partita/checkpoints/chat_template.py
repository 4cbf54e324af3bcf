"""A chat's messages to the text that a model answers, by the template that comes with its checkpoint.

Templates are the checkpoint's code, so they run in Jinja's sandbox, in the environment that Hugging Face
documents for them: blocks trimmed, `raise_exception`, `strftime_now`, a `tojson` that leaves text alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from partita.errors import InputError

Message = Mapping[str, str]
"""One turn of a chat: `role` ("system", "user", "assistant", …) and `content`."""


class ChatTemplate:
    """A compiled template with the special tokens it may name; InputError if it is no valid template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.source = source
        self.special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            problem = f"is not a valid template: {_one_line(error)}"
            raise InputError("tokenizer.chat_template", None, problem) from None

    def render(self, messages: Sequence[Message]) -> str:
        """The text of the messages, up to where the assistant's answer begins.

        Raises InputError (field "messages") for a message without role or content, or one the template
        does not accept.
        """
        for message in messages:
            if not _has_texts(message):
                problem = "each message needs a text `role` and a text `content`"
                raise InputError("messages", repr(message)[:80], problem)
        variables = {**self.special_tokens, "messages": list(messages), "add_generation_prompt": True}
        try:
            return self._template.render(variables)
        except (TemplateError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            problem = f"not accepted by the model's chat template: {_one_line(error)}"
            raise InputError("messages", None, problem) from None


def _has_texts(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(k), str) for k in ("role", "content"))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
