"""Answers in a form that was asked for: every text follows it, and no other text is changed by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.engine.asking import MODEL
from tests.server.asking_http import ask, events
from tests.server.serving import alone, quiet, started
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from partita.checkpoints.chat_template import ChatTemplate
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.checkpoints.tokenizer import Tokenizer
from partita.engine.engine import Engine, EngineOptions
from partita.engine.shapes import Capacity
from partita.server.forms import CallText
from partita.server.service import Service
from partita.sharding import Mesh, parse_layout
from partita.specs.sampling import Sampling

CONTEXT = 192
CHARACTERS = ["<eos>", "\u0120", *map(chr, range(33, 127))]
"""The characters of ASCII, each a token; a space as byte-level vocabularies write it."""
TEMPLATE = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait_1"}},
]
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 1,
    "seed": 3,
    "max_completion_tokens": 60,
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    backend = Backend(models.BPE({text: i for i, text in enumerate(CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    template = ChatTemplate(TEMPLATE, {})
    tokenizer = Tokenizer(backend, CHARACTERS, frozenset({0}), named_ends={0: "x"}, chat_template=template)
    model = MODEL.model_copy(update={"vocabulary": len(CHARACTERS)})
    checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=5), tokenizer)
    roles, options = (
        parse_layout("ws1d/heads", "x"),
        EngineOptions(capacity=Capacity(4, CONTEXT), draft="off"),
    )
    loop = started(Engine(checkpoint, Mesh("x", (1,)), roles, roles, options=options))
    yield Service(loop, "tiny")
    loop.stop()
    assert loop.join(60)


def chat(service: Service, **more: Any) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    """The answer to a chat, whole and in pieces."""
    body = CHAT | more
    whole, streamed = ask(
        service, ("/v1/chat/completions", body), ("/v1/chat/completions", body | {"stream": True})
    )
    assert whole.status_code == 200, whole.text
    pieces = [ChatCompletionChunk.model_validate(event) for event in events(streamed)]
    return ChatCompletion.model_validate(whole.json()), pieces


def test_every_answer_is_of_its_schema_and_others_are_as_alone(service: Service):
    plain = {"prompt": "abc", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    body = CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "n": 2}
    paths = [("/v1/completions", plain)] + [("/v1/chat/completions", body | {"seed": i}) for i in range(4)]
    beside, *answers = ask(service, *paths)
    quiet(service.loop)
    found = set()
    for answer in answers:
        for choice in ChatCompletion.model_validate(answer.json()).choices:
            assert choice.finish_reason == "stop"
            assert choice.message.content is not None
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
            found.add(choice.message.content)
    assert len(found) > 1  # they are drawn, not made up
    assert service.tokenizer is not None
    ids, sampling = service.tokenizer.encode("abc"), Sampling(max_tokens=30, ignore_eos=True)
    assert beside.json()["choices"][0]["text"] == alone(service.loop.engine, ids, sampling)[0][0]


def test_a_stream_is_the_same_text(service: Service):
    whole, pieces = chat(service, response_format={"type": "json_object"}, logit_bias={"94": 20})
    text = whole.choices[0].message.content or ""
    assert text == "".join(p.choices[0].delta.content or "" for p in pieces)
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"choice": ["yes", 'no "x"']}, 'yes|no "x"'),
        ({"grammar": 'start: "a" ("b" | "c")'}, "ab|ac"),
        ({"json": json.dumps({"enum": [1, 25]})}, "1|25"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_forms(service: Service, given: dict[str, Any], pattern: str):
    body = {"prompt": "abc", "max_tokens": 20, "structured_outputs": given, "ignore_eos": True, "n": 2}
    (answer,) = ask(service, ("/v1/completions", body))
    for choice in answer.json()["choices"]:
        assert re.fullmatch(pattern, choice["text"])
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("named", [False, True])
def test_a_forced_call(service: Service, named: bool):
    choice = {"type": "function", "function": {"name": "look"}} if named else "required"
    whole, pieces = chat(service, tools=TOOLS, tool_choice=choice)
    (answer,) = whole.choices
    assert answer.message.content is None
    (call,) = answer.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in (["look"] if named else ["look", "wait_1"])
    if answer.finish_reason == "length":  # any object may go on for ever
        assert call.function.name == "wait_1"
    else:
        assert answer.finish_reason == ("stop" if named else "tool_calls")
        assert isinstance(json.loads(call.function.arguments), dict)
    deltas = [delta for p in pieces for delta in p.choices[0].delta.tool_calls or []]
    first = deltas[0].function
    assert first is not None
    assert first.name == call.function.name
    assert deltas[0].id
    assert "".join((d.function and d.function.arguments) or "" for d in deltas) == call.function.arguments
    assert pieces[-1].choices[0].finish_reason == answer.finish_reason


def test_a_call_that_is_cut_short(service: Service):
    named = {"type": "function", "function": {"name": "look"}}
    head = '{"name":"look","arguments":{"n'
    more = {"tools": TOOLS, "tool_choice": named, "max_completion_tokens": len(head)}
    whole, pieces = chat(service, **more)
    (call,) = whole.choices[0].message.tool_calls or []
    assert whole.choices[0].finish_reason == "length"
    assert call.type == "function"
    assert call.function.arguments == '{"n'
    deltas = [delta for p in pieces for delta in p.choices[0].delta.tool_calls or []]
    assert "".join((d.function and d.function.arguments) or "" for d in deltas) == '{"n'


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_the_text_of_a_call_in_pieces_of_any_size(size: int):
    text, call, found = '{"name":"f","arguments":{"a":{"b":"}"}}}', CallText(), ""
    for start in range(0, len(text), size):
        found += call.push(text[start : start + size], last=start + size >= len(text))
    assert (call.name, found, call.arguments) == ("f", '{"a":{"b":"}"}}', '{"a":{"b":"}"}}')


def _format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "an unknown kind": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "no JSON schema": (_format({"type": "number", "minimum": "a"}), "response_format.json_schema.schema"),
    "none that can be met": (_format(False), "response_format.json_schema.schema"),
    "either of two that are not told apart": (
        _format({"oneOf": [{"type": "object"}, {"type": "object"}]}),
        "response_format.json_schema.schema",
    ),
    "no tools": ({"tool_choice": "required"}, "tool_choice"),
    "another's tool": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice.function.name",
    ),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "two forms": (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs.regex",
    ),
    "a broken pattern": ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    "no form": ({"structured_outputs": {}}, "structured_outputs"),
    "no choice": ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
}


def test_what_cannot_be_followed_is_refused_naming_the_field(service: Service):
    answers = ask(service, *[("/v1/chat/completions", CHAT | more) for more, _ in WRONG.values()])
    for (name, (_, field)), answer in zip(WRONG.items(), answers, strict=True):
        assert answer.status_code == 400, (name, answer.text)
        assert answer.json()["error"]["param"] == field, (name, answer.text)
    quiet(service.loop)
