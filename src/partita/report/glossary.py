"""The one glossary: every figure and word that is printed, defined exactly as it is computed here.

The words are in `glossary.toml`; README, tables and JSON Schemas use them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from partita.report.tables import plain_table

SCHEMA = "partita.glossary/1"


class GlossaryEntry(BaseModel):
    """A word, its definition, its unit where it is a figure, and who defined it where that was not us."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    term: str
    definition: str
    unit: str = ""
    source: str = ""


@cache
def glossary() -> tuple[GlossaryEntry, ...]:
    """All entries; a word stands before those that are defined by it."""
    text = files("partita.report").joinpath("glossary.toml").read_text(encoding="utf-8")
    return tuple(GlossaryEntry(**entry) for entry in tomllib.loads(text)["terms"])


def glossary_table() -> Table:
    """The glossary for people."""
    found = plain_table("term", "unit", "what it is here")
    for entry in glossary():
        source = f" ({entry.source})" if entry.source else ""
        found.add_row(Text(entry.term), entry.unit, Text(f"{entry.definition}{source}"))
    return found


def glossary_json() -> dict[str, Any]:
    """The object `glossary --json` prints."""
    return {"schema": SCHEMA, "terms": [entry.model_dump() for entry in glossary()]}
