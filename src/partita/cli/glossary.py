"""`partita glossary`: what every figure and word means, exactly as it is computed."""

from __future__ import annotations

from partita.cli import options as o
from partita.cli.output import show, show_json


def command(json: o.AsJson = False) -> None:
    """Define TTFT, TPOT, MFU, cost and every other word that is printed."""
    from partita.report.glossary import glossary_json, glossary_table

    if json:
        show_json(glossary_json())
        return
    show(glossary_table())
