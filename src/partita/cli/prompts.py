"""The options that say what a model is given: a text, token ids, or a chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli.output import show_note
from partita.cli.sampling_options import token_ids
from partita.errors import InputError

if TYPE_CHECKING:
    from partita.checkpoints.protocol import Checkpoint

Prompt = Annotated[
    str | None, typer.Option("--prompt", help="Text to continue; in a chat, what the user says.")
]
PromptIds = Annotated[str | None, typer.Option("--prompt-ids", help="Token ids: 1,2,3.")]
AsChat = Annotated[bool, typer.Option("--chat", help="Put the prompt in the model's chat template.")]
System = Annotated[
    str | None, typer.Option("--system", help="The system turn before --prompt, which makes it a chat.")
]
Messages = Annotated[
    str | None,
    typer.Option(
        "--messages",
        metavar="FILE",
        help="A chat instead of --prompt: a JSON list of messages, or an object with messages, tools, "
        "documents and chat_template_kwargs; - for standard input.",
    ),
]
TemplateKwargs = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="JSON",
        help="""Variables for the chat template, such as '{"enable_thinking": false}'.""",
    ),
]

_KWARGS = "chat_template_kwargs"


@dataclass(frozen=True)
class Chat:
    """A chat as it was asked for, with what its template is told beside the messages."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def read_chat(
    prompt: str | None, chat: bool, system: str | None, messages: str | None, variables: str | None
) -> Chat | None:
    """The chat that options ask for; None where they ask for none.

    Raises InputError naming the option that is wrong or does not go with others.
    """
    given = None if variables is None else _object(variables)
    if messages is not None:
        for option, value in (("prompt", prompt), ("system", system)):
            if value is not None:
                raise InputError(option, value, "give it as a message of --messages, which is a whole chat")
        return _from_file(messages, given or {})
    if not chat and system is None:
        if given is not None:
            raise InputError("chat-template-kwargs", variables, "applies to --chat, --system and --messages")
        return None
    if prompt is None:
        option = "chat" if chat else "system"
        raise InputError(option, system, "applies to --prompt TEXT; token ids are used as they are")
    turns = [] if system is None else [{"role": "system", "content": system}]
    return Chat([*turns, {"role": "user", "content": prompt}], variables=given or {})


def prompt_of(
    checkpoint: Checkpoint, prompt: str | None, prompt_ids: str | None, chat: Chat | None
) -> tuple[list[int], str]:
    """The prompt's tokens, and the text that is shown before the answer (none for a chat)."""
    if chat is None and (prompt is None) == (prompt_ids is None):
        raise InputError("prompt", None, "give --prompt TEXT, --prompt-ids 1,2,3 or --messages FILE")
    if prompt_ids is not None:
        if chat is not None:
            raise InputError("prompt-ids", prompt_ids, "give token ids or a chat")
        return token_ids("prompt-ids", prompt_ids), ""
    if checkpoint.tokenizer is None:
        raise InputError("prompt", prompt, "this file has no tokenizer; give --prompt-ids 1,2,3")
    if chat is not None:
        ids = checkpoint.tokenizer.chat_ids(chat.messages, chat.tools, chat.documents, chat.variables)
        return ids, ""
    assert prompt is not None
    return checkpoint.tokenizer.encode(prompt), prompt


def _object(text: str) -> Mapping[str, Any]:
    field = "chat-template-kwargs"
    found = _json(text, field, text[:80])
    if not isinstance(found, dict):
        raise InputError(field, text[:80], """a JSON object such as {"enable_thinking": false} is accepted""")
    return found


def _from_file(name: str, variables: Mapping[str, Any]) -> Chat:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
    except (OSError, ValueError) as error:  # a null byte is no path
        reason = getattr(error, "strerror", None) or error
        raise InputError("messages", name, f"cannot be read: {reason}") from None
    found = _json(raw, "messages", name)
    if isinstance(found, list):
        return Chat(found, variables=variables)
    if not isinstance(found, dict) or "messages" not in found:
        problem = "must hold a JSON list of messages, or an object with `messages`"
        raise InputError("messages", name, problem)
    inside = found.get(_KWARGS)
    if not isinstance(inside, dict | None):
        raise InputError(_KWARGS, repr(inside)[:80], f"must be an object (in {name})")
    read = ("messages", "tools", "documents", _KWARGS)
    if others := [key for key in found if key not in read]:
        show_note(f"without effect in {name}: {', '.join(others)}; these are read: {', '.join(read)}")
    together = {**(inside or {}), **variables}
    return Chat(found["messages"], found.get("tools"), found.get("documents"), together)


def _json(text: str | bytes, field: str, shown: str) -> Any:
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise InputError(field, shown, "is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError says the line and column
        raise InputError(field, shown, f"is not valid JSON: {error}") from None
