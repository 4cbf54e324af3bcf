"""Chat templates: rendered as Hugging Face renders them, in a sandbox, with clear refusals."""

from typing import Any

import pytest
from tests.checkpoints.tiny_gguf import WriteGGUF

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


def test_a_model_without_template_says_so(write_gguf: WriteGGUF):
    tokenizer = open_gguf(write_gguf({"tokenizer.chat_template": None})).tokenizer
    assert tokenizer is not None
    with pytest.raises(InputError, match="no chat template"):
        tokenizer.chat(HI)
