"""The tables and figures of Pope et al. 2022 as predictions, with published points beside them.

One module builds a family of exhibits; this one knows their names. They are imported when built.
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
    "figure1": "palm:figure1",
    "figure3": "layouts:figure3",
    "figure6": "layouts:figure6",
    "figure7": "layouts:figure7",
    "figure8": "attention:figure8",
    "figure9": "fastertransformer:figure9",
    "figureB1": "palm:figure_b1",
    "figureC1": "palm:figure_c1",
    "table1": "attention:table1",
    "table2": "scenarios:table2",
    "table3": "scenarios:table3",
    "tableD": "fastertransformer:table_d",
    "fidelity": "fidelity:fidelity",
}
"""Name -> the module here and its function."""


def build(name: str) -> Exhibit:
    """The exhibit of a name, in upper or lower case. Raises InputError (field "name") for another."""
    known = {other.lower(): other for other in EXHIBITS}
    found = known.get(name.lower())
    if found is None:
        raise InputError("name", name, f"accepted are {', '.join(EXHIBITS)}")
    module, _, function = _BUILDERS[found].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)()
