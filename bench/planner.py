"""How fast the planner is, beside its peers, in one run on one machine. See README.md in this folder.

Run: python bench/planner.py [--json FILE] [--only NAME] [--source calculon=PATH] ...
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import PLAN, SEARCH, shown, time_command
from conditions import conditions, last_core
from environments import DidNotRun, commit_of, own_path, prepare, rate
from peers.catalogue import PEERS, Peer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).parent
NAMES = ("partita", *(peer.name for peer in PEERS))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the tables, writes the JSON. Exit status 1 where one of Partita's own parts failed."""
    asked = _arguments(argv)
    core = last_core()
    found = conditions(core) | {"commit": commit_of(HERE.parent) or "not a checkout"}
    result: dict[str, Any] = {"conditions": found, "partita": {}, "peers": {}}
    chosen = asked.only or NAMES
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def step(text: str, work: Any) -> Any:
            task = progress.add_task(text, total=1)
            try:
                return work()
            except DidNotRun as error:
                return {"failed": str(error)}
            finally:
                progress.update(task, completed=1)

        if "partita" in chosen:
            path = own_path()
            script = HERE / "partita_rate.py"
            result["partita"] = {
                "rate": step(
                    "partita: configurations a second",
                    lambda: rate(sys.executable, script, asked.seconds, core, environment=path),
                ),
                "plan": step(shown(PLAN), lambda: time_command(PLAN, asked.runs, path)),
                "search": step(shown(SEARCH), lambda: time_command(SEARCH, 1, path)),
            }
        for peer in PEERS:
            if peer.name in chosen:
                result["peers"][peer.name] = about(peer) | step(
                    f"{peer.name}: install if needed, measure",
                    lambda peer=peer: measure_peer(peer, asked, core),
                )
    show(result)
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any("failed" in part for part in result["partita"].values()))


def about(peer: Peer) -> dict[str, Any]:
    return {"version": peer.version, "comes_as": peer.comes_as, "configuration": peer.configuration}


def measure_peer(peer: Peer, asked: argparse.Namespace, core: int | None) -> dict[str, Any]:
    """A peer's result. Raises DidNotRun with the reason where there is none."""
    source = asked.source.get(peer.name)
    if peer.checkout and source is None:
        raise DidNotRun(f"on no registry: give a checkout of {peer.homepage} with --source {peer.name}=PATH")
    found = {}
    if source is not None and (commit := commit_of(source) or "unknown") != peer.version:
        found["version"] = f"{commit[:12]}, not {peer.version[:12]}"
    python = prepare(asked.envs / peer.name, peer.requirements, asked.python)
    return found | rate(python, HERE / "peers" / peer.runner, asked.seconds, core, source)


def show(result: dict[str, Any]) -> None:
    """Prints the conditions and the two tables on standard output."""
    console = Console()
    for name, value in result["conditions"].items():
        said = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        console.print(f"{name.replace('_', ' ')}: {said}", highlight=False, soft_wrap=True)
    commands = Table("command", "best s", "median s", "peak MB", title="Whole commands")
    for name in ("plan", "search"):
        part = result["partita"].get(name)
        if part is not None:
            commands.add_row(part["command"], *_command_cells(part))
    columns = ("tool", "version", "configurations/s", "/s of own time", "one configuration")
    rates = Table(*columns, title="Rates on one core")
    own = result["partita"].get("rate")
    if own is not None:
        what = "mesh, layout, batch and context of one phase"
        rates.add_row("partita", result["conditions"]["commit"][:12], *_rate(own), what)
    for name, found in result["peers"].items():
        version = found["version"]
        version = version[:12] if len(version) == 40 else version
        rates.add_row(name, version, *_rate(found), found["configuration"])
        for what, value in found.get("also", {}).items():
            rates.add_row("", "", f"{value:,.1f}", "", what)
    for table in (commands, rates):
        if table.row_count:
            console.print(table)
    for name, part in (result["partita"] | result["peers"]).items():
        if "failed" in part:
            console.print(f"{name}: {part['failed']}", highlight=False, soft_wrap=True)


def _rate(found: dict[str, Any]) -> tuple[str, str]:
    if "failed" in found:
        return "not measured", ""
    return f"{found['configurations_per_second']:,.0f}", f"{found['configurations_per_own_second']:,.0f}"


def _command_cells(part: dict[str, Any]) -> tuple[str, str, str]:
    if "failed" in part:
        return "not measured", "", ""
    return (f"{part['best_seconds']:.2f}", f"{part['median_seconds']:.2f}", f"{part['peak_bytes'] / 1e6:.0f}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    kept = Path.home() / ".cache" / "partita-bench"
    add("--seconds", type=float, default=5.0, help="how long each rate is measured")
    add("--runs", type=int, default=5, help="how often the plan command is run")
    add("--only", action="append", choices=NAMES, help="measure this one only; repeatable")
    add("--envs", type=Path, default=kept, help="where the peers' environments are kept")
    add("--python", default=sys.executable, help="the Python that the peers' environments are made of")
    add("--source", action="append", default=[], metavar="NAME=PATH", help="a peer's checkout; repeatable")
    add("--json", type=Path, help="also write the result to this file")
    asked = parser.parse_args(argv)
    sources = dict(text.partition("=")[::2] for text in asked.source)
    allowed = [peer.name for peer in PEERS if peer.checkout]
    for name, path in sources.items():
        if name not in allowed or not Path(path).is_dir():
            parser.error(f"--source {name}={path}: NAME=FOLDER is accepted, NAME one of {', '.join(allowed)}")
    if asked.seconds <= 0 or asked.runs < 1:
        parser.error("--seconds above 0 and --runs of at least 1 are accepted")
    asked.source = {name: Path(path).resolve() for name, path in sources.items()}
    asked.envs = asked.envs.expanduser().resolve()
    return asked


if __name__ == "__main__":
    sys.exit(main())
