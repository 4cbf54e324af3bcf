"""What commands print: one JSON object, or Rich renderables for people."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console, RenderableType

_PIPE_WIDTH = 160
"""Columns where the output is no terminal; a table cut to 80 would be unreadable."""


def show(*things: RenderableType) -> None:
    """Prints for people, on standard output."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for thing in things:
        console.print(thing)


def show_json(value: Any) -> None:
    """Prints one JSON object on standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def progress_console() -> Console:
    """Where progress is shown: standard error, so that output can be piped."""
    return Console(stderr=True)
