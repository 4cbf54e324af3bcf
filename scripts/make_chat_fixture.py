"""Writes tests/fixtures/chat_templates.json: what transformers renders of the chats in tests/checkpoints.

Needs transformers, of the `oracle` extra. Run: PYTHONPATH=. python scripts/make_chat_fixture.py. Uses nothing
of Partita, so that it stays an oracle; `tests/checkpoints/test_chat_oracle.py` runs it again and compares.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.checkpoints.chats import CHATS, TEMPLATES, digest, flat, write_folder

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "chat_templates.json"


def rendered(tokenizer: Any, chat: dict[str, Any], **how: Any) -> Any:
    """What transformers makes of a chat; None where the template refuses it.

    Where a template prints content in parts as Python's list, or fails on it, it gets the same as text.
    """
    variables = {"add_generation_prompt": True, **chat.get("variables", {}), **how}
    beside = {name: chat.get(name) for name in ("tools", "documents")}
    parts = [message["content"] for message in chat["messages"] if isinstance(message.get("content"), list)]
    try:
        text = tokenizer.apply_chat_template(chat["messages"], **beside, **{**variables, "tokenize": False})
        if parts and any(repr(content) in text for content in parts):
            return rendered(tokenizer, flat(chat), **how)
        return tokenizer.apply_chat_template(chat["messages"], **beside, **variables)
    except Exception:  # a template may raise anything
        return rendered(tokenizer, flat(chat), **how) if parts else None


def tokenizer_of(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # pyright: ignore[reportMissingImports]

    return PreTrainedTokenizerFast.from_pretrained(folder)


def make() -> dict[str, Any]:
    """The whole fixture: for every template and chat a digest of the text, or None."""
    found: dict[str, dict[str, str | None]] = {}
    with tempfile.TemporaryDirectory() as root:
        for template in TEMPLATES:
            tokenizer = tokenizer_of(write_folder(Path(root) / template.stem, template))
            texts = {name: rendered(tokenizer, chat, tokenize=False) for name, chat in CHATS.items()}
            found[template.stem] = {name: text and digest(text) for name, text in texts.items()}
    versions = {name: version(name) for name in ("transformers", "jinja2")}
    return {"made_by": "scripts/make_chat_fixture.py", "versions": versions, "texts": found}


def main() -> None:
    FIXTURE.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
