"""Chats that templates are tried with: system turns, several turns, tools, their results, thinking."""

from typing import Any

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
