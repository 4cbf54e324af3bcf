"""Decode with drafted tokens, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from partita.planner.drafting import DraftedStep
from partita.planner.pair import Basis
from partita.report.tables import plain_table
from partita.specs.units import format_seconds


def drafts_table(steps: Sequence[DraftedStep], basis: Basis) -> Table:
    """One row for each acceptance and number of drafted tokens; JSON names the sources."""
    right = ("drafted", "acceptance", "tokens a step", "step", "drafting", "TPOT", "tokens/s", "speed-up")
    table = plain_table(f"decode with drafts by the {basis}: acceptance", *right, right=right)
    for step in steps:
        table.add_row(
            Text(f"published for {step.target}" if step.target else step.source),
            f"{step.drafted}",
            f"{step.acceptance:.2f}",
            f"{step.tokens:.2f}",
            format_seconds(step.step_seconds),
            format_seconds(step.draft_seconds),
            format_seconds(step.tpot_seconds),
            f"{step.tokens_per_second:,.0f}",
            f"{step.speedup:.2f}x",
        )
    return table
