"""Writes an exhibit into a folder: its picture, its text and its JSON. Knows nothing about its numbers."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from partita.errors import InputError
from partita.files import write_whole
from partita.report.plots import save
from partita.report.reproduce.exhibit import SCHEMA, Exhibit
from partita.report.reproduce.show import as_text, picture

_COLUMNS = 160


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
    Console(file=text, width=_COLUMNS, highlight=False).print(as_text(exhibit))
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    value = {"schema": SCHEMA, "exhibits": [exhibit.as_json()]}
    written = {
        folder / f"{exhibit.name}.txt": lines + "\n",
        folder / f"{exhibit.name}.json": json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
        + "\n",
    }
    for path, content in written.items():
        write_whole(path, content, "out")
    paths = list(written)
    if exhibit.panels:
        paths.append(folder / f"{exhibit.name}{suffix}")
        save(picture(exhibit), paths[-1], "out")
    return paths
