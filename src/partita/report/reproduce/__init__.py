"""The tables and figures of Pope et al. 2022 as predictions, with published points beside them.

One module builds one exhibit or a family of them; this one knows their names. They are imported when built.
"""

from __future__ import annotations

from importlib import import_module

from partita.errors import InputError
from partita.report.reproduce.exhibit import SCHEMA, Exhibit

__all__ = ["EXHIBITS", "SCHEMA", "Exhibit", "build"]

EXHIBITS: dict[str, str] = {
    "figure1": "cost against latency of PaLM 8B, 62B and 540B over chips and batches, decode and prefill",
    "figure3": "what a feed-forward layer sends in each layout, by tokens in the batch; the crossovers",
    "figure6": "decode latency of PaLM 540B by chips, weights split in one dimension or two",
    "figure7": "MFU of PaLM 540B's prefill by tokens, weights kept or gathered",
    "figure8": "decode latency by context: multihead, baseline and optimised multiquery attention",
    "figure9": "MFU against total latency, 60 tokens in and 20 out, beside FasterTransformer",
    "figureB1": "prefill of one sequence of 32 to 1024 tokens",
    "figureC1": "MFU against latency of PaLM 8B, 62B and 540B",
    "table1": "longest context of PaLM 540B by kind of attention",
    "table2": "PaLM 540B's four scenarios on 64 chips",
    "table3": "PaLM 62B's four scenarios",
    "tableD": "hyperparameters, and total times beside FasterTransformer",
    "fidelity": "estimates beside all published times: errors by table, intervals, constants",
}
"""Name -> what it shows."""

_BUILDERS = {
    "figure1": "figure1:build",
    "figure3": "figure3:build",
    "figure6": "figure6:build",
    "figure7": "figure7:build",
    "figure8": "figure8:build",
    "figure9": "figure9:build",
    "figureB1": "figure_b1:build",
    "figureC1": "figure_c1:build",
    "table1": "tables:table1",
    "table2": "tables:table2",
    "table3": "tables:table3",
    "tableD": "table_d:build",
    "fidelity": "fidelity:build",
}


def build(name: str) -> Exhibit:
    """The exhibit of a name, in upper or lower case. Raises InputError (field "name") for another."""
    known = {other.lower(): other for other in EXHIBITS}
    found = known.get(name.lower())
    if found is None:
        raise InputError("name", name, f"accepted are {', '.join(EXHIBITS)}")
    module, _, function = _BUILDERS[found].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)()
