"""Published figures with their sources, read from `published.toml` beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Published:
    """A table somebody published: what it rests on, in words, and its rows by column."""

    name: str
    provenance: str
    source: str
    rows: tuple[dict[str, Any], ...]

    @property
    def credit(self) -> str:
        """A sentence for captions."""
        return f"Published: {self.source}. Provenance: {self.provenance}."


def published(name: str) -> Published:
    """The table `name`; raises KeyError where there is none."""
    return _tables()[name]


@cache
def _tables() -> dict[str, Published]:
    data = tomllib.loads(files("partita.report.reproduce").joinpath("published.toml").read_text("utf-8"))
    return {
        table["name"]: Published(
            name=table["name"],
            provenance=table["provenance"],
            source=table["source"],
            rows=tuple(dict(zip(table["columns"], row, strict=True)) for row in table["rows"]),
        )
        for table in data["table"]
    }
