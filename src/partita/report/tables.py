"""What the tables for people are made of: the one plain table, and layouts and limits in words."""

from __future__ import annotations

import re

from rich.table import Table
from rich.text import Text

from partita.sharding.roles import Roles


def plain_table(
    *headings: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = (), cut: tuple[str, ...] = ()
) -> Table:
    """A table with no rows yet and no lines between them; columns in `right` are set to the right.

    Where the page is narrow, columns in `whole` still keep each cell on one line, words that are too long end
    in an ellipsis in columns in `cut`, and are folded in all others.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        kept = heading in whole
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="ellipsis" if kept or heading in cut else "fold",
            no_wrap=kept,
        )
    return table


def layout_text(roles: Roles, width: int = 40) -> Text:
    """A layout's roles; where they are wider than `width`, broken after the slash and after commas."""
    text = str(roles)
    if len(text) <= width:
        return Text(text)
    lines = []
    for part in re.findall(r"[^/]+/?", text):
        lines.append("")
        for piece in re.findall(r"[^,]+,?", part):
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
            lines[-1] += piece
    return Text("\n".join(lines))


def limit_text(binds: str) -> str:
    """What limits a step, in words: "link:yz" is "links of y, z"."""
    named = {"kv": "KV cache"}
    return named.get(binds) or (f"links of {', '.join(binds[5:])}" if binds.startswith("link:") else binds)
