"""What n-gram drafts are worth: tokens/s of SmolLM2 with drafts and without, turn by turn on one CPU device.

    python bench/drafting.py [--model smollm2-135m] [--tokens 192] [--turns 5] [--devices 1] [--json FILE]

Two prompts, each continued greedily and drawn with a seed: one whose continuation repeats it, and one that is
continued without repeats (at temperature 1, or greedily with a repetition penalty). Every case is run first
to compile what it needs, then both settings take turns. A turn is timed from its first token to its
last, by the clock and by the process' own time, which a busy machine disturbs less. That drafts change no
token is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conditions import conditions
from rich.console import Console
from rich.table import Table

from partita import Engine
from partita.engine.drafting import WIDTH, Drafter, Pace
from partita.specs.sampling import Sampling

CODE = """def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius ** 2
    if shape.kind == "square":
        return shape.side ** 2
    raise ValueError(shape.kind)
"""
REPEATED = f"Original:\n{CODE}\nCopy:\n{CODE}\nCopy:\n"
PROSE = "In the autumn of that year the old ferryman told us how the river had changed its bed. He said"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "repeats, greedy": (REPEATED, {}),
    "repeats, drawn": (REPEATED, {"temperature": 0.3, "seed": 1}),
    "no repeats, greedy": (PROSE, {"repetition_penalty": 1.3}),
    "no repeats, drawn": (PROSE, {"temperature": 1.0, "seed": 1}),
}
DRAFTS = ("off", "auto")


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="smollm2-135m", help="a model with a tokenizer")
    options.add_argument("--tokens", type=int, default=192, help="written in each turn")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--devices", type=int, default=1)
    options.add_argument("--only", help="cases that begin so")
    options.add_argument("--json", type=Path, help="where all figures go")
    asked = options.parse_args()
    console, found = Console(width=130, highlight=False), {}
    engine = Engine.load(asked.model, mesh=f"x={asked.devices}", devices=asked.devices)
    for name, (prompt, settings) in CASES.items():
        if name.startswith(asked.only or ""):
            request = Sampling(max_tokens=asked.tokens, ignore_eos=True, **settings)
            found[name] = measure(engine, prompt, request, asked.turns)
            show(console, found)
    if asked.json is not None:
        asked.json.write_text(json.dumps({"conditions": conditions(None), "cases": found}, indent=1) + "\n")
    return 0


def measure(engine: Engine, prompt: str, request: Sampling, turns: int) -> dict[str, Any]:
    drafters: list[Drafter] = []

    def drafter(slots: Any) -> Drafter:
        drafters.append(Engine._drafter(engine, slots))
        return drafters[-1]

    engine._drafter = drafter
    expected = run(engine, "off", prompt, request)[0]
    for draft in ("ngram", "auto"):  # the first compiles what verifies, whether that would pay or not
        assert run(engine, draft, prompt, request)[0] == expected, "drafts changed a token"
    wall: dict[str, list[float]] = {draft: [] for draft in DRAFTS}
    cpu: dict[str, list[float]] = {draft: [] for draft in DRAFTS}
    for turn in range(turns):
        for draft in DRAFTS[:: 1 if turn % 2 else -1]:
            tokens, seconds, own = run(engine, draft, prompt, request)
            assert tokens == expected, "drafts changed a token"
            wall[draft].append(len(tokens) / seconds)
            cpu[draft].append(len(tokens) / own)
    last = next(each for each in reversed(drafters) if each.draft == "auto")
    verified = len(last.steps)
    return {
        "tokens": len(expected),
        "tokens_per_second": {draft: statistics.median(each) for draft, each in wall.items()},
        "wall_ratios": [b / a for a, b in zip(wall["off"], wall["auto"], strict=True)],
        "cpu_ratios": [b / a for a, b in zip(cpu["off"], cpu["auto"], strict=True)],
        "verified_steps": verified,
        "tokens_per_verified_step": sum(last.steps) / verified if verified else None,
        "step_ratio": last.pace.ratio if verified else None,
        "lookup_microseconds": lookup_seconds(engine.tokens(prompt), expected) * 1e6,
    }


def lookup_seconds(prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """What finding drafts takes the host for each token, whether or not they are verified."""
    drafter = Drafter("auto", WIDTH, Pace(2.0))
    drafter.begin(0, prompt, len(tokens))
    start = time.process_time()
    for token in tokens:
        drafter.drafts()
        drafter.push(0, token)
    return (time.process_time() - start) / len(tokens)


def run(engine: Engine, draft: Any, prompt: str, request: Sampling) -> tuple[list[int], float, float]:
    """Tokens, and the seconds from the first to the last, by the clock and of the process."""
    engine.draft, tokens, start = draft, [], (0.0, 0.0)
    for piece in engine.pieces(prompt, request):
        if not tokens:
            start = time.perf_counter(), time.process_time()
        assert piece.token is not None
        tokens.append(piece.token)
    return tokens, time.perf_counter() - start[0], time.process_time() - start[1]


def show(console: Console, found: dict[str, Any]) -> None:
    table = Table(title="tokens/s without drafts and with (auto), the median of turns")
    for column in (
        "case",
        "off",
        "auto",
        "ratio (range)",
        "by CPU time",
        "steps verified",
        "tokens each",
        "step ratio",
        "lookup, us",
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, case in found.items():
        rates, wall, own = (case[key] for key in ("tokens_per_second", "wall_ratios", "cpu_ratios"))
        table.add_row(
            name,
            *(f"{rates[draft]:.1f}" for draft in DRAFTS),
            f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})",
            f"{statistics.median(own):.2f}",
            f"{case['verified_steps']}",
            *(f"{case[key]:.2f}" if case[key] else "" for key in ("tokens_per_verified_step", "step_ratio")),
            f"{case['lookup_microseconds']:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
