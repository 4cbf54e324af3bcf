"""README and docs say what is there: links, pages, commands, paths, names, and what they quote.

Needs neither a network nor MkDocs. A fenced `console` block starts with a command; the lines below are its
output, a line `...` standing for some that are left out. Where a command prints the same on every machine it
is run, and what is quoted compared with what it prints.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import typer.main

import partita
from partita.cli.app import app, run
from partita.specs.cluster import parse_cluster
from partita.specs.profile import LINK_TERMS, TERMS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
PROGRAM: Any = typer.main.get_command(app())
COMMANDS: dict[str, Any] = PROGRAM.commands
SAME_EVERYWHERE = ("plan", "predict", "explain", "models", "clusters", "glossary", "reproduce")
"""Commands that neither run a model nor a clock."""
COLUMNS = "110"
"""Width of the terminal that quoted output was printed on."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HERE = re.compile(r"\b(?:src/partita|tests|bench|scripts|examples|docs)/[\w./-]*\w")


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    kind: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    return [" ".join(span.split()) for span in SPAN.findall(prose(page))]


def blocks(kind: str | None = None) -> list[Block]:
    """All of a kind; a line that ends in a backslash is joined with the next."""
    found = [
        Block(page, language, text.replace("\\\n", ""))
        for page in TEXTS
        for language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]
    return [block for block in found if kind in (None, block.kind)]


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    kept = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in kept}


def command_lines() -> Iterator[tuple[Path, str]]:
    """Every line of a block that calls the program, without its prompt and its folder."""
    for block in blocks():
        for line in block.text.splitlines():
            if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?(partita .*)", line):
                yield block.page, match[1]


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


# -- pages and links ----------------------------------------------------------------------------------------


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_page_is_in_the_navigation_once_and_every_entry_is_a_page():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", nav, re.M)) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_to_pages_and_headings(page: Path):
    for link in LINK.findall(prose(page)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert page.parent != DOCS or target.is_relative_to(DOCS), f"{link} is outside the site"
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_files_that_are_named_or_included_are_there(page: Path):
    included = re.findall(r'^--8<-- "(.+)"$', page.read_text(encoding="utf-8"), re.M)
    named = [path for span in spans(page) for path in HERE.findall(span)]
    missing = [path for path in [*included, *named] if not (ROOT / path).exists()]
    assert missing == []


def test_the_map_of_the_code_has_every_room():
    table = prose(ROOT / "CONTRIBUTING.md").partition("| room |")[2].partition("\n\n")[0]
    rooms = {folder.parent.name for folder in Path(partita.__file__).parent.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == rooms


# -- the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "line"),
    list(command_lines()),
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_a_command_line_is_one_that_the_program_takes(page: Path, line: str):
    _, command, *arguments = shlex.split(line, comments=True)
    if "--help" not in arguments:
        COMMANDS[command].make_context(command, arguments)


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_commands_and_options_in_the_text_exist(page: Path):
    every = set().union(*map(options, COMMANDS.values()), {"--help"})
    for span in spans(page):
        words = [word.partition("=")[0] for word in span.split()]
        if words[0] != "partita" and not words[0].startswith("--"):
            continue
        named = words[0] == "partita" and len(words) > 1 and words[1] not in ("COMMAND", "...", "--help")
        known = options(COMMANDS[words[1]]) | {"--help"} if named else every
        assert {word for word in words if word.startswith("--")} <= known, span


def test_the_reference_has_every_command_with_every_option():
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert list(sections) == list(COMMANDS)
    for command, text in sections.items():
        said = set(re.findall(r"--[a-z][a-z0-9-]*", text))
        own = options(COMMANDS[command]) - {"--help"}
        assert own <= said, f"{command} lacks {own - said}"
        assert said <= own | {"--compare"} or command == "plan", f"{command} has no {said - own}"


QUOTABLE = re.compile(rf"\$ \S*partita (?:{'|'.join(SAME_EVERYWHERE)}) .*\n.")
QUOTED = [block for block in blocks("console") if QUOTABLE.match(block.text)]


@cache
def printed(command: str) -> list[str]:
    """The lines that a command prints on a terminal of this width."""
    terminal = {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": COLUMNS}
    with patch.dict(os.environ, terminal), redirect_stdout(io.StringIO()) as out:
        assert run(shlex.split(command, comments=True)) == 0
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()]


@pytest.mark.xdist_group("quoted")  # a command is run once
@pytest.mark.parametrize("block", QUOTED, ids=lambda block: name(block.page))
def test_quoted_output_is_what_the_program_prints(block: Block):
    command, *quoted = block.text.splitlines()
    lines = iter(printed(command.partition("partita ")[2]))
    for line in quoted:
        assert line == "..." or line.rstrip() in lines, f"not printed, or not in this order: {line}"


# -- names of the code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: name(block.page))
def test_python_in_the_text_is_python(block: Block):
    if not block.text.startswith("--8<--"):
        compile(block.text, block.page.name, "exec")


def test_the_python_reference_names_what_there_is():
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)\n((?:    .*\n)*)", page, re.M)
    assert len(entries) > 10
    for full, written in entries:
        module, _, last = full.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        members = set(re.findall(r"\w+", written.partition("members:")[2])) - {"true"}
        fields = {*inspect.get_annotations(found), *getattr(found, "model_fields", ()), *dir(found)}
        missing = sorted(members - fields)
        assert missing == [], full


def test_the_json_page_has_every_key_of_the_schemas():
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    schemas = sorted((ROOT / "src/partita/schemas").glob("*.json"))
    assert len(schemas) >= 4
    for schema in schemas:
        assert f"`src/partita/schemas/{schema.name}`" in page
        keys = json.loads(schema.read_text(encoding="utf-8"))["properties"]
        assert [key for key in keys if f"`{key}`" not in page] == [], schema.name


def test_clusters_in_the_text_are_clusters(tmp_path: Path):
    found = [block.text for block in blocks("toml") if "[[fabric]]" in block.text]
    assert len(found) >= 3
    for number, text in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(text, encoding="utf-8")
        assert parse_cluster(str(file)).chips > 1


def test_every_constant_of_a_profile_is_explained():
    page = (DOCS / "clusters.md").read_text(encoding="utf-8")
    assert [term for term in [*TERMS, *LINK_TERMS] if f"| `{term}` |" not in page] == []
