"""How fast the engine is, beside transformers and llama.cpp, in one run on one machine. See README.md here.

Run: python bench/engine.py [--peer-python PYTHON] ... [--only NAME] ... [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conditions import conditions
from engine_tables import show
from environments import DidNotRun, commit_of, own_path
from peers.engines import PEERS, Peer
from peers.serve import Case
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from served import Served

from partita.checkpoints.open import packaged_gguf
from partita.errors import InputError
from partita.specs import catalogue_model

HERE = Path(__file__).parent
MODEL = "smollm2-135m"
PROMPT = 512
CASES = {
    f"prefill {PROMPT}": Case("prefill", 1, PROMPT),
    **{f"decode batch {batch}": Case("decode", batch, PROMPT) for batch in (1, 8, 32)},
}
ROOFS = {what: Case(what, 1, 1) for what in ("memory", "matmul")}
WEIGHTS = ("f32", "int8", "bf16")
LAYOUTS = "ws1d/heads,ws1d/heads"
"""The layouts of prefill and decode. On 8 devices none was faster (ws1d/batch, wg-x/batch)."""
VISITS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the tables, writes the JSON. Exit status 1 where Partita's engine failed somewhere."""
    asked = _arguments(argv)
    found = conditions(None) | {"commit": commit_of(HERE.parent) or "not a checkout"}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("start", total=None)
        result = measure(asked, lambda text: progress.update(task, description=text))
    result = {"conditions": found, "model": MODEL, "prompt": PROMPT} | result
    show(result)
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    own = [each for name, each in result["engines"].items() if name.startswith("partita")]
    return int(any("failed" in case for each in own for case in (each, *each.get("cases", {}).values())))


def measure(asked: argparse.Namespace, say: Any) -> dict[str, Any]:
    """Every engine started, then every case visited on all of them in turn, `VISITS` times.

    All engines are in memory together, at rest but for the one that is timed; they are ended at the end.
    """
    commands = own_commands(asked.devices) | peer_commands(asked, say)
    engines: dict[str, dict[str, Any]] = {}
    running: dict[str, Served] = {}
    try:
        roofs = Served([sys.executable, HERE / "roofs.py"], own_path())
        running["roofs"] = roofs
        for name, command in commands.items():
            if asked.only and not any(name.startswith(only) for only in asked.only):
                continue
            say(f"{name}: start")
            try:
                if isinstance(command, DidNotRun):
                    raise command
                running[name] = Served(command, own_path() if name.startswith("partita") else None)
                engines[name] = running[name].about | {"cases": {}}
            except DidNotRun as error:
                engines[name] = {"failed": str(error)}
        rates: dict[str, list[float]] = {what: [] for what in ROOFS}
        for title in asked.case or CASES:
            case = CASES[title]
            visits: dict[str, list[list[float]]] = {name: [] for name in engines}
            for turn in range(VISITS):
                for what, roof in ROOFS.items():
                    rates[what].append(roofs.about[what] / min(roofs.ask(roof, asked.seconds / 4)))
                for name, engine in engines.items():
                    if "failed" in engine or "failed" in engine["cases"].get(title, {}):
                        continue
                    say(f"{title}, visit {turn + 1} of {VISITS}: {name}")
                    try:
                        visits[name].append(running[name].ask(case, asked.seconds))
                        engine["cases"][title] = in_seconds(case, visits[name])
                    except DidNotRun as error:
                        engine["cases"][title] = {"failed": str(error)}
        return {"roofs": {what: max(each) for what, each in rates.items()}, "engines": engines}
    finally:
        for each in running.values():
            each.close()


def in_seconds(case: Case, visits: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The median step of the fastest visit, and of the slowest: how quiet the machine was."""
    medians = sorted(statistics.median(visit) for visit in visits)
    return {
        "tokens_per_second": case.new_tokens / medians[0],
        "step_seconds": medians[0],
        "slowest_visit_seconds": medians[-1],
        "steps": sum(len(visit) for visit in visits),
    }


def own_commands(devices: Sequence[int]) -> dict[str, list[str | Path]]:
    """Partita's engine in each format on each number of devices."""
    script = [sys.executable, HERE / "engine_rate.py", "--model", MODEL]
    return {
        f"partita {weights}" + (f", {count} devices" if count > 1 else ""): [
            *script,
            *("--devices", str(count), "--weights", weights, "--layouts", LAYOUTS),
        ]
        for count in devices
        for weights in WEIGHTS
    }


def peer_commands(asked: argparse.Namespace, say: Any) -> dict[str, list[str | Path] | DidNotRun]:
    """Each peer on the first given Python that has its modules; where none has, the reason."""
    model = catalogue_model(MODEL)
    try:
        file = asked.gguf or packaged_gguf(MODEL)
    except InputError:
        file = None
    found: dict[str, list[str | Path] | DidNotRun] = {}
    for peer in PEERS:
        say(f"{peer.name}: look for {', '.join(peer.modules)}")
        python = next((p for p in (*asked.peer_python, sys.executable) if has(p, peer)), None)
        arguments = peer.arguments(model, file)
        if python is None:
            needed = " and ".join(peer.modules)
            found[peer.name] = DidNotRun(f"give a Python that has {needed} with --peer-python PYTHON")
        elif arguments is None:
            found[peer.name] = DidNotRun(f"give a GGUF file of {MODEL} with --gguf FILE")
        else:
            found[peer.name] = [python, HERE / "peers" / peer.runner, *arguments]
    return found


def has(python: str, peer: Peer) -> bool:
    """Whether an interpreter has the modules that a peer needs; they are looked for, not imported."""
    look = "import sys, importlib.util as u; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))"
    try:
        return subprocess.run([python, "-c", look, *peer.modules], timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--seconds", type=float, default=2.0, help=f"of each of {VISITS} visits to a case of an engine")
    add("--devices", type=int, action="append", help="CPU devices of Partita's engine; repeatable (1 and 8)")
    add("--only", action="append", metavar="NAME", help="engines whose name starts so; repeatable")
    add("--case", action="append", choices=CASES, help="time this one only; repeatable")
    add("--peer-python", action="append", default=[], metavar="PYTHON", help="that has a peer; repeatable")
    add("--gguf", type=Path, help="the model's file for llama.cpp; found where its package is installed")
    add("--json", type=Path, help="also write the result to this file")
    asked = parser.parse_args(argv)
    asked.devices = asked.devices or [1, 8]
    if asked.seconds <= 0 or min(asked.devices) < 1:
        parser.error("--seconds above 0 and --devices of at least 1 are accepted")
    names = [*own_commands(asked.devices), *(peer.name for peer in PEERS)]
    for only in asked.only or []:
        if not any(name.startswith(only) for name in names):
            parser.error(f"--only {only}: no engine's name starts so; there are {', '.join(names)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
