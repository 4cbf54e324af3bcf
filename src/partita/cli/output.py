"""What commands print: one JSON object, or Rich renderables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def show_note(text: str) -> None:
    """Says something beside the output, on standard error."""
    print(f"note: {text}", file=sys.stderr)


def progress_console() -> Console:
    """Where progress is shown: standard error, so that output can be piped."""
    return Console(stderr=True)


@contextmanager
def progress_bar(remaining: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error while it lasts, where that is a terminal: call what it gives with what is done
    now, how far, of how much. remaining: with the time that is left, as far as can be told."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    time = TimeRemainingColumn(elapsed_when_finished=True) if remaining else TimeElapsedColumn()
    shown = (TextColumn("{task.description}"), BarColumn(), time)
    console = progress_console()
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of)

        yield tell
