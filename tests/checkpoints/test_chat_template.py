"""Chat templates: rendered as Hugging Face renders them, in a sandbox, with clear refusals."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.chats import CHATS, TEMPLATES
from tests.checkpoints.tiny_gguf import WriteGGUF
from tests.sizes import examples

from partita.checkpoints.chat_template import ChatTemplate
from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.tokenizer import Tokenizer
from partita.errors import InputError

HI = [{"role": "user", "content": "hi"}]


def test_smollm2_chat_equals_that_of_transformers(tokenizer: Tokenizer, oracle: dict[str, Any]):
    chats = [entry for entry in oracle["prompts"] if "messages" in entry]
    assert chats
    for entry in chats:
        assert tokenizer.chat(entry["messages"]) == entry["prompt"]


def test_a_system_message_replaces_the_default_one(tokenizer: Tokenizer):
    text = tokenizer.chat([{"role": "system", "content": "Be terse."}, *HI])
    assert text == (
        "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed_and_helpers_are_there():
    source = """{{ bos_token }}
{%- for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
[{{ m | tojson }}]
{% endfor %}
{% if add_generation_prompt %}
>{{ strftime_now('%%') }}
{% endif %}"""
    chat = [{"role": "system", "content": "no"}, {"role": "user", "content": "<é>"}]
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(chat) == (
        '<s>[{"role": "user", "content": "<é>"}]\n>%\n'
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must\nalternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[5].content.strip() }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_one_line(source: str):
    with pytest.raises(InputError, match=r"^messages: not accepted by the model's chat template: [^\n]+$"):
        ChatTemplate(source, {}).render(HI)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hi", "is an object"),
        ({"content": "hi"}, "text `role`"),
        ({"role": 5, "content": "hi"}, "text `role`"),
        ({"role": "user"}, "needs `content`"),
        ({"role": "user", "content": None}, "needs `content`"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "needs `content`"),
        ({"role": "user", "content": 5}, "a text or a list of parts"),
        ({"role": "user", "content": [5]}, "parts of its `content` must be objects"),
        ({"role": "user", "content": [{"type": "text"}]}, "needs a text `text`"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "'image_url' is not read"),
    ],
)
def test_a_message_that_no_template_could_take_is_named(message: Any, problem: str):
    with pytest.raises(InputError, match=rf"^messages\[1\]: [^\n]*{problem}[^\n]*$"):
        ChatTemplate("x", {}).render([*HI, message])


@pytest.mark.parametrize("messages", [[], "hi", {"role": "user", "content": "hi"}, None])
def test_a_chat_is_a_list_of_messages(messages: Any):
    with pytest.raises(InputError, match=r"^messages: "):
        ChatTemplate("x", {}).render(messages)


def test_tools_and_documents_are_none_where_there_are_none():
    source = (
        "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ thinking is defined }}"
    )
    template = ChatTemplate(source, {})
    assert template.render(HI) == "True True True False"
    given = template.render(HI, [], [{}], {"add_generation_prompt": False, "thinking": None})
    assert given == "False False False True"


def test_variables_come_before_special_tokens_and_do_not_replace_messages():
    template = ChatTemplate("{{ bos_token }}{{ self is defined }}", {"bos_token": "<s>"})
    assert template.render(HI, variables={"bos_token": "<b>"}).startswith("<b>")
    with pytest.raises(InputError, match=r"^chat_template_kwargs: messages: "):
        template.render(HI, variables={"messages": []})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ {'é': [1, '<']} | tojson }}", '{"é": [1, "<"]}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00e9", "b": 1}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ dict(a=1).a }}{{ dict.fromkeys([1]) }}", "1{1: None}"),
        ("{% set n = namespace(self=1) %}{% set n.x = 2 %}{{ n.self }}{{ n.x }}", "12"),
    ],
)
def test_what_templates_may_use(source: str, text: str):
    assert ChatTemplate(source, {}).render(HI) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ dict.__class__ }}",
        "{% set n = namespace(_x=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages | attr('__class__') }}",
        "{% include 'x' %}",
    ],
)
def test_what_templates_may_not_use(source: str):
    template = ChatTemplate(source, {})
    try:
        assert template.render(HI) == ""  # an attribute that is not given away is undefined
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 (one or the other)


def test_parts_are_joined_for_a_template_that_takes_only_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = [{"role": "user", "content": parts}]
    for source in ("{{ '<' + messages[0].content }}", "<{{ messages[0].content | trim }}"):
        assert ChatTemplate(source, {}).render(chat) == "<a\nb"
    takes_parts = "{% for part in messages[0].content %}<{{ part.text }}{% endfor %}"
    assert ChatTemplate(takes_parts, {}).render(chat) == "<a<b"


def test_the_template_for_tools_is_taken_where_tools_are_given():
    template = ChatTemplate("plain", {}, {"tool_use": "with tools"})
    assert template.render(HI) == "plain"
    assert template.render(HI, []) == "with tools"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% endfor %}", "{% generation %}", "{{ 1 | no_such_filter }}"]
)
def test_a_template_that_is_none_stops_chats_alone(source: str):
    template = ChatTemplate(source, {})  # nothing is said before a chat is asked for
    with pytest.raises(InputError, match=r"^tokenizer\.chat_template: is not a valid template: [^\n]+$"):
        template.render(HI)


EDITS = st.tuples(
    st.integers(0, 20_000),
    st.integers(0, 30),
    st.sampled_from(["", "{{", "}}", "{% endif %}", "{% endfor %}", "'", "|", " * 10**10 ", "\0", "\ud800"]),
)


@examples(30)
@given(
    template=st.sampled_from(TEMPLATES), edits=st.lists(EDITS, max_size=3), chat=st.sampled_from(list(CHATS))
)
def test_a_damaged_template_gives_text_or_one_line(
    template: Path, edits: list[tuple[int, int, str]], chat: str
):
    source = template.read_text(encoding="utf-8")
    for at, length, put in edits:
        at %= len(source) + 1
        source = source[:at] + put + source[at + length :]
    try:
        text = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(CHATS[chat]["messages"])
        assert isinstance(text, str)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 (one or the other)


def test_a_model_without_template_says_so(write_gguf: WriteGGUF):
    tokenizer = open_gguf(write_gguf({"tokenizer.chat_template": None})).tokenizer
    assert tokenizer is not None
    with pytest.raises(InputError, match="no chat template"):
        tokenizer.chat(HI)
