"""The tokens after which a model has said what it had to say, and why each is taken for one.

Files often name only some of them: a conversion leaves out the token that ends a turn, or a fine-tune keeps
the base model's end of text. A model then runs on past its turn. So three sources are put together: what the
files name, the chat template's own turn end, and control tokens whose text is known to end turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from partita.checkpoints.chat_template import ChatTemplate, TemplateLimit
from partita.errors import InputError

KNOWN = frozenset(
    [
        "<|im_end|>",  # ChatML: Qwen, SmolLM, Yi, Hermes, InternLM, OLMo
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",  # Llama 3.1, where a tool's answer is waited for
        "<|eot|>",  # Llama 4
        "<|eom|>",
        "<end_of_turn>",  # Gemma
        "<turn|>",  # Gemma 4
        "<|tool_response>",  # Gemma 4, where a tool's answer begins
        "<eos>",
        "</s>",  # SentencePiece: Llama 2, Mistral, Zephyr, Vicuna
        "<|end|>",  # Phi 3
        "<|return|>",  # gpt-oss (harmony)
        "<|call|>",
        "<|calls|>",  # Solar Open
        "<|flush|>",
        "<|endoftext|>",  # GPT-2, Falcon, Phi
        "<|end_of_text|>",  # Llama 3, Granite
        "<|end_of_turn|>",  # OpenChat
        "<|END_OF_TURN_TOKEN|>",  # Command R
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek, with a full-width | and a low line for spaces
        "<|EOT|>",  # DeepSeek Coder
        "<EOT>",
        "_<EOT>",
        "[|endofturn|]",  # EXAONE
        "[EOT]",  # Kimi
        "[EOS]",
        "<|role_end|>",  # Ling
        "<end_of_utterance>",  # SmolVLM
    ]
)
"""Texts of control tokens that end a turn or a text, with a family that has them; most are those of llama.cpp
(`src/llama-vocab.cpp`, `special_eog_ids`)."""

_TURN_END = "chat template's turn end"
_KNOWN_TEXT = "known control token"

_ENDS_A_MESSAGE = "<|end|>"
_BESIDE_WHICH = frozenset(["<|return|>", "<|call|>", "<|calls|>", "<|flush|>"])
"""Where a vocabulary has one of these, `<|end|>` is between an answer's messages and not at its end (OpenAI,
harmony response format)."""
_STRUCK_OUT = "</s>"
_BESIDE_STRIKE = "<|tool_response>"
"""Gemma 4's vocabulary has `</s>` as HTML's struck-out text, as llama.cpp notes."""

_ANSWER = "Thirty-seven herons"
_ASKED: dict[str, str] = {"role": "user", "content": "What are they?"}
_ANSWERED: dict[str, str] = {"role": "assistant", "content": _ANSWER}
_CHATS = ([_ASKED, _ANSWERED], [_ASKED, _ANSWERED, _ASKED])
"""The second is for templates whose turns end where the next begins, as GLM-4's do."""


def find_ends(
    named: Mapping[int, str],
    control: Mapping[str, int],
    whole: Mapping[str, int],
    template: ChatTemplate | None,
) -> dict[int, list[str]]:
    """The ids of the tokens that end a text, each with the reasons why.

    named: ids that the files name, each with where. control: the control tokens' ids by text. whole: those
    of all tokens that text is searched for, control tokens among them.
    """
    reasons: dict[int, list[str]] = {token: [where] for token, where in named.items()}
    no_ends: set[str] = set()
    if _BESIDE_WHICH & control.keys():
        no_ends.add(_ENDS_A_MESSAGE)
    if _BESIDE_STRIKE in control:
        no_ends.add(_STRUCK_OUT)
    if template is not None and (end := turn_end(template, whole.keys() - no_ends)) is not None:
        reasons.setdefault(whole[end], []).append(_TURN_END)
    for text in sorted(KNOWN & control.keys() - no_ends, key=control.__getitem__):
        reasons.setdefault(control[text], []).append(_KNOWN_TEXT)
    return reasons


def turn_end(template: ChatTemplate, tokens: Iterable[str]) -> str | None:
    """The token that a template writes after what the assistant said; of several in a row the first that is
    known to end turns, else the first. None where it writes text there, or cannot be rendered."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    for chat, tools in product(_CHATS, (None, [])):  # some templates want a list of tools
        try:
            text = template.render(chat, tools, variables={"add_generation_prompt": False})
        except TemplateLimit:  # the others would take as long
            return None
        except InputError:
            continue
        _, answer, rest = text.rpartition(_ANSWER)
        row = _leading(rest, longest_first) if answer else []
        if row:
            return next((token for token in row if token in KNOWN), row[0])
    return None


def _leading(text: str, tokens: list[str]) -> list[str]:
    """The tokens that a text begins with, one after the other."""
    found = []
    while token := next((token for token in tokens if text.lstrip().startswith(token)), None):
        found.append(token)
        text = text.lstrip().removeprefix(token)
    return found
