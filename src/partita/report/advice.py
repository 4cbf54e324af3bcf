"""The analyses of a chosen plan as tables: its rules, crossovers, sensitivities, other engines' flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from partita.advice.crossover import Crossover
from partita.advice.gpu_engines import EngineFlags
from partita.advice.rule import Rule
from partita.advice.sensitivity import WHAT, Sensitivity
from partita.report.tables import plain_table
from partita.specs.units import format_count, format_seconds


def rules(found: Sequence[Rule], phase: str) -> RenderableType:
    """Every rule a phase's layout breaks, hard ones marked, with its price and the nearest alternative."""
    if not found:
        return Text(f"{phase}: every dim divides and everything fits")
    costs = "costs at least" if all(rule.expected_seconds is None for rule in found) else "costs"
    table = plain_table(f"{phase}: rules", costs, "instead")
    for rule in found:
        price = "does not run" if rule.hard else rule.price
        table.add_row(Text(rule.message, style="bold" if rule.hard else ""), price, Text(rule.alternative))
    return table


def crossovers(found: Sequence[Crossover]) -> RenderableType:
    """The nearest crossovers of one phase or both."""
    if not found:
        return Text("none of the other layouts is better at any batch, context or prompt")
    table = plain_table("phase", "crossover", "here", "becomes", "because it")
    for crossing in found:
        side = "from" if crossing.value > crossing.here else "down from"
        table.add_row(
            crossing.phase,
            f"{side} {crossing.quantity} {crossing.value:,}",
            f"{crossing.here:,}",
            Text(crossing.becomes),
            "is faster" if crossing.why == "faster" else "fits",
        )
    return table


def sensitivities(found: Sequence[Sensitivity]) -> RenderableType:
    """What each change of the chips would do to the objective, and to the choice where that was requested."""
    asked = any(each.changes_choice is not None for each in found)
    more = ("layouts",) if asked else ()
    table = plain_table("with", "the objective is", "against", "change", "elasticity", *more)
    for each in found:
        choice = {None: "", False: "the same"}.get(each.changes_choice, f"{each.choice} would be chosen")
        table.add_row(
            f"{each.more:.0%} {WHAT[each.what]}",
            _objective(each.objective, each.after),
            _objective(each.objective, each.before),
            f"{each.change:+.1%}",
            f"{each.elasticity:+.2f}",
            *([Text(choice)] if asked else []),
        )
    return table


def other_engines(found: Sequence[EngineFlags], specs: dict[str, Any] | None = None) -> RenderableType:
    """Each engine's command, or what it cannot express; `specs` from `partition_specs` come first."""
    parts: list[RenderableType] = []
    if specs is not None:
        table = plain_table("JAX", "sharding", "PartitionSpec of a layer's array")
        groups = {"": specs["weights"]} | {phase: specs[phase] for phase in ("prefill", "decode")}
        for phase, tensors in groups.items():
            for name, entry in tensors.items():
                table.add_row(f"{phase} {name}".strip(), Text(entry["sharding"]), Text(entry["spec"]))
        parts += [table, Text()]
    for flags in found:
        if flags.expressible:
            parts.append(Text.assemble((f"{flags.engine}: ", "bold"), flags.command))
            parts += [Text(f"  but {text}") for text in flags.differs]
        else:
            parts.append(Text.assemble((flags.engine, "bold"), " cannot express it:"))
            parts += [Text(f"  {text}") for text in flags.cannot]
    return Group(*parts)


def _objective(objective: str, value: float) -> str:
    if objective == "latency":
        return format_seconds(value)
    if objective == "context":
        return f"{format_count(value)} tokens"
    return f"{value * 1e3:.3g} chip-ms per output token"
