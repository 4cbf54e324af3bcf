"""`partita reproduce`: the paper's tables and figures, predicted, beside what is published of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.output import progress_console, show, show_json

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Such as figure1 or table2; without it, all are listed.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for a picture, text and JSON of NAME, or of all.")
]
Svg = Annotated[bool, typer.Option("--svg", help="Pictures as SVG instead of PNG.")]


def command(name: Name = None, out: Out = None, svg: Svg = False, json: o.AsJson = False) -> None:
    """Predict the paper's tables and figures, beside published values."""
    from partita.report.reproduce import EXHIBITS, SCHEMA

    if name is None and out is None:
        if json:
            listed = [{"name": known, "shows": what} for known, what in EXHIBITS.items()]
            show_json({"schema": SCHEMA, "exhibits": listed})
        else:
            _list(EXHIBITS)
        return
    made = _make(list(EXHIBITS) if name is None else [name], out, ".svg" if svg else ".png", quiet=json)
    if json:
        exhibits = [{**exhibit.as_json(), "files": list(map(str, files))} for exhibit, files in made]
        show_json({"schema": SCHEMA, "exhibits": exhibits})
        return
    if name is not None:
        from partita.report.reproduce.show import as_text

        show(as_text(made[0][0]))
    for _, files in made:
        for file in files:
            show(f"written: {file}")


def _list(exhibits: dict[str, str]) -> None:
    from partita.report.tables import plain_table

    table = plain_table("name", "what it shows")
    for known, what in exhibits.items():
        table.add_row(known, what)
    show(table, "partita reproduce NAME shows one; --out FOLDER draws it, without NAME all of them")


def _make(names: list[str], out: Path | None, suffix: str, quiet: bool) -> list:
    """Builds the exhibits and, where there is a folder, writes them: (exhibit, files written) each."""
    from rich.progress import Progress

    from partita.report.reproduce import build
    from partita.report.reproduce.show import make_folder, write

    made = []
    with Progress(console=progress_console(), transient=True, disable=quiet or len(names) == 1) as progress:
        for known in progress.track(names, description="predicting"):
            exhibit = build(known)
            if out is not None:
                make_folder(out)
            made.append((exhibit, [] if out is None else write(exhibit, out, suffix)))
    return made
