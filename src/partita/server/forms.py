"""What the text of an answer must be: JSON of a schema, a choice, a pattern, a grammar, or a call of a tool.

Knows bodies and what llguidance takes, no model. A forced call is written as the JSON
`{"name":...,"arguments":{...}}`, which `CallText` takes apart again while it comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from partita.errors import InputError
from partita.server.bodies import ChatBody, GenerateBody, NamedTool, Tool

Kind = Literal["schema", "regex", "lark"]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Form:
    """Text that must follow `rule`. field: of the body that asks for it."""

    kind: Kind
    rule: Any
    field: str


def forced_call(body: GenerateBody) -> Literal["required", "named"] | None:
    """Whether a body forces a call: of any of its tools, or of one that it names."""
    if not isinstance(body, ChatBody) or body.tool_choice in (None, "none", "auto"):
        return None
    return "named" if isinstance(body.tool_choice, NamedTool) else "required"


def form_of(body: GenerateBody) -> Form | None:
    """The form that a body asks for; None for any text. Raises InputError naming the field."""
    forms = [form for form in (_call(body), _response(body), _structured(body)) if form is not None]
    if len(forms) > 1:
        raise InputError(forms[1].field, None, f"does not go together with {forms[0].field}")
    return forms[0] if forms else None


def _call(body: GenerateBody) -> Form | None:
    if not isinstance(body, ChatBody) or forced_call(body) is None:
        return None
    tools = body.tools or []
    if not tools:
        raise InputError("tool_choice", None, "forces a call, but there are no tools")
    if isinstance(body.tool_choice, NamedTool):
        wanted = body.tool_choice.function.name
        tools = [tool for tool in tools if tool.function.name == wanted]
        if not tools:
            raise InputError("tool_choice.function.name", wanted, "is none of the tools")
    return Form("schema", {"anyOf": [_call_schema(tool) for tool in tools]}, "tools")


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = tool.function.parameters
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "arguments": ANY_OBJECT if parameters is None else {"type": "object", **parameters},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _response(body: GenerateBody) -> Form | None:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Form("schema", ANY_OBJECT, "response_format")
    if asked.json_schema is None:
        raise InputError("response_format.json_schema", None, "is needed: an object with `schema`")
    return Form("schema", asked.json_schema.schema_, "response_format.json_schema.schema")


def _structured(body: GenerateBody) -> Form | None:
    asked = body.structured_outputs
    if asked is None:
        return None
    given = {name: value for name in ("json", "regex", "choice", "grammar") if (value := asked.get(name))}
    if len(given) != 1:
        raise InputError("structured_outputs", None, "one of json, regex, choice and grammar is accepted")
    ((name, rule),) = given.items()
    field = f"structured_outputs.{name}"
    if name == "json":
        if isinstance(rule, str):
            try:
                rule = json.loads(rule)
            except (ValueError, RecursionError):
                raise InputError(field, None, "is no JSON") from None
        return Form("schema", rule, field)
    if name == "choice":
        if not isinstance(rule, list) or not all(isinstance(text, str) and text for text in rule):
            raise InputError(field, None, "a list of texts is accepted")
        return Form("lark", "start: " + " | ".join(json.dumps(text) for text in rule), field)
    if not isinstance(rule, str):
        raise InputError(field, None, "a text is accepted")
    return Form("regex" if name == "regex" else "lark", rule, field)


class CallText:
    """A forced call as its text comes: the tool's name, and its arguments piece by piece."""

    _HEAD = re.compile(r'\{"name":"([^"]*)","arguments":')

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments = ""
        self._held = ""

    def push(self, text: str, last: bool) -> str:
        """What this adds to the arguments. The last character is held back, since it may be the brace that
        closes the call."""
        self._held += text
        if self.name is None:
            head = self._HEAD.match(self._held)
            if head is None:
                return ""
            self.name, self._held = head[1], self._held[head.end() :]
        piece, self._held = self._held[:-1], self._held[-1:]
        self.arguments += piece
        if last and not (self._held == "}" and _is_json(self.arguments)):  # it was cut short
            self.arguments += self._held
            piece += self._held
        return piece


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
