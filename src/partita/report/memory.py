"""What a chip of a plan's server holds, as a table: by part, at every moment."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from partita.planner.infeasible import WHILE, live_memory
from partita.planner.model_limits import longest_context
from partita.planner.pair import Pair
from partita.report.tables import plain_table
from partita.specs.units import format_bytes, format_count

_PARTS = ("weights", "kv", "activations", "runtime", "total", "capacity")


def memory_table(pair: Pair) -> Group:
    """A row for each moment, and how much more would fit."""
    setting = pair.decode.setting
    table = plain_table("memory per chip", *_PARTS, right=_PARTS)
    for moment, live in pair.memory.items():
        memory = live_memory(live, setting.capacity_bytes)
        table.add_row(WHILE[moment], *(format_bytes(memory[part]) for part in _PARTS))
    whole, share = setting.cluster.chip.hbm_bytes, setting.memory_utilization
    used = "all" if share == 1 else f"{share:g}"
    text = Text(
        f"capacity is {used} of {format_bytes(whole)}; with it this would fit: a batch of "
        f"{format_count(pair.max_batch)}, or a context of {_longest(pair)}"
    )
    return Group(table, text)


def _longest(pair: Pair) -> str:
    setting = pair.decode.setting
    longest = longest_context(setting.model, pair.max_context, setting.workload)
    trained = ", all that the model was trained for" if longest < pair.max_context else ""
    return f"{format_count(longest)}{trained}"
