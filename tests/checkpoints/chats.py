"""Chats that templates are tried with: system turns, several turns, tools, their results, thinking;
and the templates that they are put through. Uses nothing of Partita, as the oracle does not."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SYSTEM = {"role": "system", "content": "You answer briefly,\nin  English. "}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> & here, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town's name"},
                "days": {"type": "integer", "enum": [1, 2]},
                "units": {"type": ["string", "null"], "default": "metric"},
                "where": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["place"],
        },
        "return": {"type": "object", "description": "What it is like"},
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}
ASK = {"role": "user", "content": "  Wie ist das Wetter in Zürich? 🌦\n"}
SAY = {"role": "assistant", "content": "It rains.\n\n"}
AGAIN = {"role": "user", "content": "And `print('x')` in <b>Oslo</b>?"}
CALL_ID = "a1B2c3D4e"  # Mistral's templates take nine characters


def _call(arguments: Any, name: str = "weather", call: str = CALL_ID) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [_call({"place": "Zürich", "days": 2, "where": [47.4, 8.5], "exact": True})],
}
RESULT = {
    "role": "tool",
    "tool_call_id": CALL_ID,
    "name": "weather",
    "content": '{"sky": "rain", "degrees": 11}',
}
TWO_CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [_call({"place": "Oslo"}), _call({}, "clock", "Z9y8X7w6V")],
}
TIME = {"role": "tool", "tool_call_id": "Z9y8X7w6V", "name": "clock", "content": "noon"}
THOUGHT = {"role": "assistant", "content": "4", "reasoning_content": "Two and two.\nSo four."}
IN_CONTENT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"}

CHATS: dict[str, dict[str, Any]] = {
    "question": {"messages": [ASK]},
    "system": {"messages": [SYSTEM, ASK]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, ASK]},
    "turns": {"messages": [ASK, SAY, AGAIN]},
    "many turns": {"messages": [SYSTEM, ASK, SAY, AGAIN, SAY, ASK]},
    "two questions": {"messages": [ASK, AGAIN]},
    "whole": {"messages": [SYSTEM, ASK, SAY], "variables": {"add_generation_prompt": False}},
    "tools": {"messages": [ASK], "tools": [WEATHER, CLOCK]},
    "system and tools": {"messages": [SYSTEM, ASK], "tools": [WEATHER]},
    "call": {"messages": [ASK, CALLS, RESULT], "tools": [WEATHER]},
    "calls in text": {
        "messages": [ASK, {**CALLS, "tool_calls": [_call('{"place": "Zürich"}')]}, RESULT],
        "tools": [WEATHER],
    },
    "two calls": {
        "messages": [SYSTEM, ASK, TWO_CALLS, RESULT, TIME, SAY, AGAIN],
        "tools": [WEATHER, CLOCK],
    },
    "no tools left": {"messages": [ASK, CALLS, RESULT, SAY, AGAIN]},
    "an object as result": {"messages": [ASK, CALLS, {**RESULT, "content": {"sky": ["rain"]}}]},
    "empty tools": {"messages": [ASK], "tools": []},
    "thought": {"messages": [AGAIN, THOUGHT, ASK]},
    "thought under another name": {
        "messages": [AGAIN, {"role": "assistant", "content": "4", "thinking": "Two and two."}, ASK]
    },
    "thought in the content": {"messages": [AGAIN, IN_CONTENT, ASK]},
    "thought before a call": {
        "messages": [ASK, {**CALLS, "reasoning_content": "I need it."}, RESULT],
        "tools": [WEATHER],
    },
    "no thinking": {"messages": [ASK], "variables": {"enable_thinking": False, "thinking": False}},
    "thinking": {
        "messages": [SYSTEM, ASK],
        "variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    },
    "documents": {
        "messages": [ASK],
        "documents": [{"title": "Rain", "text": "It fell."}, {"title": "Snow", "text": "None."}],
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, SAY, AGAIN]},
    "names": {"messages": [{"role": "user", "name": "Ada", "content": "Hi"}]},
}

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
"""Public chat templates by their form: what they write and how they write it, their prose cut short. One,
jinja-features, is of what templates may use and few do."""

_DEEPSEEK = {"bos_token": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"}
_DEEPSEEK["eos_token"] = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_NAMED = {
    "command-r": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
    "command-r7b": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v2": _DEEPSEEK,
    "deepseek-v3": _DEEPSEEK,
    "gemma-2": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gemma-3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "phi-3.5": {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
    "phi-4-mini": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
}
_USUAL = {"bos_token": "<s>", "eos_token": "</s>"}
_SPECIAL = re.compile(
    r"<[|\uff5c][^\s<>{}'\"]{1,40}[|\uff5c]>|</?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|sop)>"
    r"|\[/?[A-Z_]{3,}\]|\[\|\w+\|\]|\[gMASK\]|<extra_id_\d>"
)


def named_tokens(template: Path) -> dict[str, str]:
    """The tokens that a template may name."""
    return _NAMED.get(template.stem, _USUAL)


def special_tokens() -> list[str]:
    """Every token that one of the templates writes."""
    found = {token for path in TEMPLATES for token in _SPECIAL.findall(path.read_text(encoding="utf-8"))}
    return sorted(found.union(*(named_tokens(path).values() for path in TEMPLATES)))


def write_folder(folder: Path, template: Path) -> Path:
    """A folder with this template and a byte-level tokenizer, which puts a bos token before plain text."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token) for token in special_tokens()])
    named = named_tokens(template)
    bos = named["bos_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    settings = {**named, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def flat(chat: dict[str, Any]) -> dict[str, Any]:
    """The same chat with every content in parts as one text."""
    turns = []
    for message in chat["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": "\n".join(part["text"] for part in content)}
        turns.append(message)
    return {**chat, "messages": turns}


_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d [A-Z][a-z]+ \d{4}|[A-Z][a-z]+ \d\d, \d{4}")


def digest(text: str) -> str:
    """A few digits that tell a text from others, whatever day it names."""
    return hashlib.sha256(_DATE.sub("today", text).encode()).hexdigest()[:12]
