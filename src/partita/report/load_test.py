"""A measured load for people, with the simulation of the same beside it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from partita.measure.load_test import Measured
from partita.report.tables import plain_table
from partita.simulation.result import PERCENTILES, Limits, Result
from partita.specs.units import format_seconds

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}


def load_table(measured: Measured, limits: Limits, simulated: Result | None) -> Table:
    """Times, throughput and goodput; a second column for what was simulated."""
    results = [measured] if simulated is None else [measured, simulated]
    table = plain_table("", *("measured", "simulated")[: len(results)])
    every = [result.percentiles() for result in results]
    for name, text in _NAMES.items():
        for part in ("mean", *(f"p{share}" for share in PERCENTILES)):
            title = f"{text}, {part}" if part == "mean" else f"  {part}"
            cells = [found[name] for found in every]
            table.add_row(title, *("" if cell is None else format_seconds(cell[part]) for cell in cells))
    seconds = measured.seconds
    rates = [len(measured.good) / seconds, float(measured.output.sum()) / seconds]
    rows = [("requests a second", rates[:1]), ("output tokens a second", rates[1:])]
    if limits.ttft is not None or limits.tpot is not None:
        rows += [("goodput, requests a second", [measured.good_share(limits) * len(measured.sent) / seconds])]
    if simulated is not None:
        rows[0][1].append(simulated.requests_per_second)
        rows[1][1].append(simulated.output_tokens_per_second)
        if len(rows) > 2:
            rows[2][1].append(simulated.good(limits) * simulated.requests_per_second)
    for name, values in rows:
        table.add_row(name, *(f"{value:,.4g}" for value in values))
    return table


def load_note(measured: Measured, skip: int) -> Text:
    """What was counted, and what went wrong."""
    answered, late = measured.good, measured.percentiles()["late"]
    prompt = sum(one.prompt for one in answered) / len(answered)
    before = f" ({skip:,} before them do not count)" if skip else ""
    mean, took = float(measured.output.mean()), format_seconds(measured.seconds)
    text = (
        f"{len(answered):,} of {len(measured.sent):,} requests answered{before}, on average {prompt:,.0f} "
        f"prompt and {mean:,.0f} output tokens, in {took}; sent {format_seconds(late['p99'] if late else 0)} "
        "late or less (p99)"
    )
    errors = ", ".join(f"{count:,} x {error}" for error, count in measured.errors.items())
    return Text(f"{text}; errors: {errors}" if errors else text)
