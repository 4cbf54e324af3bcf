"""What a reader sees of a Rich renderable."""

from io import StringIO

from rich.console import Console, RenderableType


def text_of(thing: RenderableType) -> str:
    """As text, 200 columns wide."""
    console = Console(width=200, file=StringIO(), record=True)
    console.print(thing)
    return console.export_text()
