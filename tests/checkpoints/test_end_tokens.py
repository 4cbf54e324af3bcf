"""Tokens that end a text: by what files name, by the chat template's turn end, by known control tokens."""

from typing import Any

import pytest
from tests.checkpoints.tiny_gguf import WriteGGUF

from partita.checkpoints.chat_template import ChatTemplate
from partita.checkpoints.end_tokens import find_ends, turn_end
from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.tokenizer import Tokenizer

CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
TURN = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}END{% endfor %}"
EARLIER_TURNS_END_OTHERWISE = (
    "{% for m in messages %}<|start|>{{ m.content }}"
    "{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
)


def read(write_gguf: WriteGGUF, end: str, kind: int, template: str | None = None, **keys: Any) -> Tokenizer:
    """The tokenizer of the tiny file with its last token, 11, so spelt and of this type."""
    changes = {
        "tokenizer.ggml.tokens": [*"abcd1234", "ab", "34", "cdc", end],
        "tokenizer.ggml.token_type": [1] * 11 + [kind],
        "tokenizer.ggml.eos_token_id": None,
        "tokenizer.ggml.bos_token_id": None,
        "tokenizer.chat_template": template,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
    tokenizer = open_gguf(write_gguf(changes)).tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(
    "end",
    ["<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "</s>", "<EOT>"],
)
def test_a_control_token_known_to_end_turns_ends_where_no_key_names_it(write_gguf: WriteGGUF, end: str):
    tokenizer = read(write_gguf, end, CONTROL)
    assert tokenizer.ends == {11: ["known control token"]}
    assert tokenizer.eos_ids == {11}


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_the_same_text_of_another_kind_of_token_does_not(write_gguf: WriteGGUF, kind: int):
    """Such as Gemma's `</s>`, which there is HTML's struck-out text."""
    assert read(write_gguf, "</s>", kind).ends == {}


def test_other_control_tokens_do_not(write_gguf: WriteGGUF):
    for text in ("<|im_start|>", "<|start_header_id|>", "<pad>", "[INST]"):
        assert read(write_gguf, text, CONTROL).ends == {}


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_the_template_says_what_ends_a_turn(write_gguf: WriteGGUF, kind: int):
    tokenizer = read(write_gguf, "<over>", kind, TURN.replace("END", "<over>\n"))
    assert tokenizer.ends == {11: ["chat template's turn end"]}
    assert read(write_gguf, "<over>", kind, TURN.replace("END", "\n")).ends == {}


def test_every_reason_is_kept_and_keys_come_first(write_gguf: WriteGGUF):
    tokenizer = read(write_gguf, "<|im_end|>", CONTROL, TURN.replace("END", "<|im_end|>"), eot_token_id=11)
    assert tokenizer.ends == {
        11: [
            "tokenizer.ggml.eot_token_id",
            "chat template's turn end",
            "known control token",
        ]
    }


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('no') }}", "{{ 'x' * 10**10 }}"])
def test_a_template_that_cannot_be_rendered_ends_nothing(write_gguf: WriteGGUF, template: str):
    assert read(write_gguf, "<over>", CONTROL, template, eos_token_id=3).ends == {
        3: ["tokenizer.ggml.eos_token_id"]
    }


@pytest.mark.parametrize(
    ("control", "ends"),
    [
        (["<|end|>"], ["<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
        (["<|end|>", "<|calls|>", "<|flush|>"], ["<|calls|>", "<|flush|>"]),
        (["</s>", "<turn|>", "<|tool_response>"], ["<turn|>", "<|tool_response>"]),
    ],
)
def test_what_ends_a_message_but_not_the_answer(control: list[str], ends: list[str]):
    """gpt-oss ends the message that thinks with `<|end|>` and then answers."""
    ids = {text: i for i, text in enumerate(control)}
    assert list(find_ends({}, ids, ids, None)) == [ids[text] for text in ends]
    assert find_ends({ids[control[0]]: "the file"}, ids, ids, None)[ids[control[0]]][0] == "the file"
    template = ChatTemplate(TURN.replace("END", control[0]), {})
    assert list(find_ends({}, ids, ids, template)) == [ids[text] for text in ends]


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TURN.replace("END", "  <e>\n"), "<e>"),
        (TURN.replace("END", "<e><b>"), "<e><b>"),  # the longest token that is there
        (TURN.replace("END", "<b><|im_end|>\n<e>"), "<|im_end|>"),  # of a row the one that is known
        (TURN.replace("END", "<b>\n<e>"), "<b>"),
        ("{% if tools | length == 0 %}" + TURN.replace("END", "<e>") + "{% endif %}", "<e>"),
        (TURN.replace("END", "."), None),
        (TURN.replace("END", ""), "<|user|>"),  # as GLM-4: where the next turn begins
        (EARLIER_TURNS_END_OTHERWISE, "<|return|>"),
        ("{% for m in messages %}{{ m.content | upper }}<e>{% endfor %}", None),
        ("{{ messages[2].content }}<e>", None),  # nothing of what the assistant said
    ],
)
def test_the_turn_end_is_what_follows_the_answer(template: str, end: str | None):
    tokens = ["<e>", "<e><b>", "<b>", "<|user|>", "<|assistant|>", "<|start|>", "<|end|>", "<|return|>"]
    tokens += ["<|im_end|>", ""]
    assert turn_end(ChatTemplate(template, {}), tokens) == end
