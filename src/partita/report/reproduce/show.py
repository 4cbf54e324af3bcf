"""An exhibit for people: as text, as a picture, and as files in a folder."""

from __future__ import annotations

import io
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.errors import InputError
from partita.files import write_whole
from partita.report.plots import draw, save
from partita.report.reproduce.exhibit import SCHEMA, Column, Exhibit, ExhibitTable
from partita.report.tables import plain_table
from partita.specs.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PROSE = 100
"""Characters in a line of prose in a table."""

_FILE_WIDTH = 160
"""Characters in a line of a text file."""


def picture(exhibit: Exhibit) -> Figure:
    """The panels with title and caption."""
    return draw(exhibit.panels, title=exhibit.title, caption=exhibit.caption)


def as_text(exhibit: Exhibit) -> Group:
    """Title, tables and caption."""
    parts: list[RenderableType] = [Text(exhibit.title, style="bold")]
    for table in exhibit.tables:
        parts += [Text(), Text(table.title, style="italic"), _table(table)]
    parts += [Text(), *(Text(paragraph) for paragraph in exhibit.caption)]
    return Group(*parts)


def _table(table: ExhibitTable) -> Table:
    right = tuple(c.heading for c in table.columns if c.form not in ("text", "prose"))
    shown = plain_table(*(c.heading for c in table.columns), right=right)
    for row in table.rows:
        shown.add_row(*(Text(cell(column, row.get(column.key))) for column in table.columns))
    return shown


def cell(column: Column, value: Any) -> str:
    """One value as people read it; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    match column.form:
        case "prose":
            return textwrap.fill(value, _PROSE)
        case "count":
            return f"{value:,.0f}"
        case "seconds":
            return format_seconds(value)
        case "share":
            return f"{value:.1%}"
        case "ratio":
            return f"{value:.2f}"
        case "number":
            return f"{value:.3g}"
    return str(value)


def make_folder(folder: Path) -> None:
    """Makes the folder and those it is in. Raises InputError (field "out") where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError("out", folder, "is a file; give the path of a folder") from None
    except OSError as error:
        raise InputError("out", folder, f"cannot be made: {error.strerror}") from None


def write(exhibit: Exhibit, folder: Path, suffix: str = ".png") -> list[Path]:
    """Writes NAME.txt, NAME.json and, where there are panels, NAME.png (or .svg); returns what was written.

    Raises InputError (field "out") where a file cannot be written.
    """
    text = io.StringIO()
    Console(file=text, width=_FILE_WIDTH, highlight=False).print(as_text(exhibit))
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    value = {"schema": SCHEMA, "exhibits": [exhibit.as_json()]}
    json_text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
    written = {folder / f"{exhibit.name}.txt": lines, folder / f"{exhibit.name}.json": json_text}
    for path, content in written.items():
        write_whole(path, content + "\n", "out")
    paths = list(written)
    if exhibit.panels:
        paths.append(folder / f"{exhibit.name}{suffix}")
        save(picture(exhibit), paths[-1], "out")
    return paths
