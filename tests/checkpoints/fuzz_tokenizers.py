"""Tokenizers that are damaged or meant to do harm, read and used.

`python -m tests.checkpoints.fuzz_tokenizers FIRST COUNT` ends with 0 where each of so many is used, or
refused in one line, within 5 seconds and 500 MB.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checkpoints.tiny_gguf import TINY_METADATA
from tests.checkpoints.twelve_tokenizers import TWELVE

from partita.checkpoints.gguf_file import Metadata
from partita.checkpoints.gguf_tokenizer import read_tokenizer as read_gguf_tokenizer
from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_files import read_tokenizer
from partita.errors import InputError

MOST_SECONDS, MOST_BYTES = 5.0, 500 << 20
TEXTS = ("", "a", "Hello <s>world</s>, it's 1234!\n\n  é🌙", "a" * 40 + "b", " " * 300 + "x", "▁<0x41>")
CHAT = [{"role": "user", "content": "hi"}]
VALUES: list[Any] = [
    *[
        None,
        True,
        -1,
        0,
        1,
        2**31,
        4 * 10**8,
        4 * 10**9,
        2**64,
        1e308,
        "",
        " ",
        "a",
        "▁",
        "\n ",
        "(a+)+$",
        "(",
    ],
    *[
        [],
        {},
        [[]],
        "x" * 5000,
        "\ud7ff\U0010ffff",
        {"type": "Sequence"},
        {"Regex": "(a|a)*$"},
        {"String": ""},
    ],
    *[
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2000},
        {"type": "Prepend", "prepend": "aa"},
    ],
    *[{"type": "ByteLevel"}, {"type": "Metaspace"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
    *[{"type": "Split", "pattern": {"Regex": r"(\s*)*x"}, "behavior": "Isolated", "invert": False}],
    *[{"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "FixedLength", "length": 0}],
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value, of long lists and objects only the first few."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path]
    for key, inner in list(items)[:12] if len(path) < 12 else ():
        found += places(inner, (*path, key))
    return found


def changed(value: Any, chance: random.Random) -> Any:
    """A JSON value with one to three of its parts replaced, removed, doubled or put inside another."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.randrange(1, 4)):
        path = chance.choice(places(value))
        if not path:
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        kind, last = chance.randrange(6), path[-1]
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(last, holder[last])
        elif kind == 2:
            depth = chance.choice([1, 100])
            for _ in range(depth):
                holder[last] = {"type": "Sequence", "normalizers": [holder[last]], "decoders": [holder[last]]}
                if depth > 1:
                    holder[last].pop("decoders")
        else:
            holder[last] = json.loads(json.dumps(chance.choice(VALUES)))
    return value


def damaged(text: str, chance: random.Random) -> bytes:
    """A text with bytes changed, left out or doubled, or cut short."""
    raw = bytearray(text.encode())
    for _ in range(chance.randrange(1, 6)):
        if not raw:
            break
        place, size = chance.randrange(len(raw)), chance.choice([1, 1, 2, 50])
        part = raw[place : place + size]
        raw[place : place + size] = chance.choice(
            [b"", part * 2, chance.randbytes(len(part)), b"{", b'"', b"9" * 12]
        )
    return bytes(raw[: chance.randrange(len(raw) + 1)] if chance.random() < 0.1 else raw)


def use(tokenizer: Tokenizer | None) -> None:
    """Texts, chats and ids, each of which may be refused."""
    if tokenizer is None:
        return
    for text in TEXTS:
        attempt(lambda text=text: tokenizer.encode(text))
    ids = range(min(len(tokenizer.tokens), 300))
    attempt(lambda: tokenizer.decode(ids))
    for show in (False, True):
        attempt(lambda show=show: [*map(tokenizer.stream(show).push, ids), tokenizer.stream(show).end()])
    attempt(lambda: tokenizer.chat(CHAT))


def attempt(run: Callable[[], object]) -> None:
    """Runs it; it may be refused, in one line."""
    refusal = ""
    try:
        run()
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal, refusal
    assert len(refusal) < 1000, refusal


def folder_case(number: int, chance: random.Random, forms: list[Any], folder: Path) -> Callable[[], object]:
    form = chance.choice(forms)
    settings: Any = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    if number % 3 == 0:
        settings["chat_template"] = damaged(TEMPLATE, chance).decode(errors="replace")
        raw = json.dumps(form).encode()
    elif number % 3 == 1:
        raw = json.dumps(changed(form, chance)).encode()
    else:
        raw = damaged(json.dumps(form), chance)
    settings = changed(settings, chance) if chance.random() < 0.2 else settings
    (folder / "tokenizer.json").write_bytes(raw)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return lambda: use(read_tokenizer(folder, 600))


def gguf_case(chance: random.Random) -> Callable[[], object]:
    keys: dict[str, Any] = {
        key: value for key, value in TINY_METADATA.items() if key.startswith("tokenizer.")
    }
    if chance.random() < 0.5:
        pieces = [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            "▁",
            "a",
            "b",
            "▁a",
            "ab",
        ]
        keys |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces}
        keys["tokenizer.ggml.token_type"] = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 4]
        keys["tokenizer.ggml.scores"] = [-float(i) for i in range(len(pieces))]
    else:
        keys["tokenizer.ggml.pre"] = chance.choice(
            ["llama-bpe", "qwen2", "tekken", "deepseek-llm", "superbpe", "?"]
        )
    keys = {
        key: changed([value], chance) if chance.random() < 0.2 else [value] for key, value in keys.items()
    }
    flat = {key: value[0] for key, value in keys.items() if isinstance(value, list) and value}
    return lambda: use(read_gguf_tokenizer(Metadata(flat, Path("fuzz.gguf")), 600))


def main(first: int, count: int) -> None:
    forms = [json.loads(make().to_str()) for make in TWELVE.values()]
    forms += [{**form, "post_processor": None} for form in forms]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            chance = random.Random(number)
            run = gguf_case(chance) if number % 4 == 3 else folder_case(number, chance, forms, Path(folder))
            start = time.process_time()
            try:
                attempt(run)
            except BaseException:
                print(f"case {number}", file=sys.stderr)
                raise
            taken = time.process_time() - start
            assert taken < MOST_SECONDS, f"case {number} took {taken:.1f} seconds"
            more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            assert more < MOST_BYTES, f"case {number} took {more} bytes"
    print(f"{count} cases")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
