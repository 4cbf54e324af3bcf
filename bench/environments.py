"""Gives each peer an environment of its own, made once and kept, and runs what is to be timed in it.

Knows which interpreter and which files, not what they print beyond one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INSTALL_SECONDS, RUN_SECONDS = 900, 300
"""Longest an installation may take, and a run beyond the seconds that it is asked to measure."""

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


class DidNotRun(Exception):
    """One line: why a peer was not installed, or did not answer."""


def prepare(folder: Path, requirements: Sequence[str], interpreter: str) -> Path:
    """The Python of the environment `folder`, with `requirements` installed; made unless it is there already.

    Raises DidNotRun where pip cannot install them.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "installed.json"
    wanted = {"requirements": list(requirements), "interpreter": interpreter}
    if python.exists() and stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return python
    _run(
        [interpreter, "-m", "venv", "--clear", str(folder)], INSTALL_SECONDS, "could not make an environment"
    )
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *requirements], INSTALL_SECONDS, "did not install")
    stamp.write_text(json.dumps(wanted))
    return python


def rate(
    python: str | Path,
    script: Path,
    seconds: float,
    core: int | None,
    source: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a runner reports after `seconds` on one core. Raises DidNotRun where it fails."""
    command = [str(python), str(script), "--seconds", str(seconds)]
    command += [] if core is None else ["--core", str(core)]
    command += [] if source is None else ["--source", str(source)]
    answer = _run(command, 3 * seconds + RUN_SECONDS, "did not run", ONE_THREAD | dict(environment or {}))
    try:
        return json.loads(answer.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise DidNotRun(f"{script.name} printed no result") from None


def commit_of(checkout: Path) -> str | None:
    """The commit that a folder is the checkout of, "+" after it where files differ; None if it is none."""

    def git(*asked: str) -> str:
        command = ["git", "-C", str(checkout), *asked]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != checkout.resolve():
            return None
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _run(command: Sequence[str], timeout: float, failed: str, more: Mapping[str, str] | None = None) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(more or {})
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=timeout, env=variables
        )
    except subprocess.TimeoutExpired:
        raise DidNotRun(f"{failed}: no answer after {timeout:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or [f"exit status {error.returncode}"]
        raise DidNotRun(f"{failed}: {lines[-1]}") from None
    except OSError as error:
        raise DidNotRun(f"{failed}: {error.strerror or error}") from None
    return found.stdout


def own_path() -> dict[str, str]:
    """What Partita's own processes need to import the package that this process imports."""
    import partita

    return {"PYTHONPATH": os.pathsep.join([str(Path(partita.__file__).parents[1]), *_inherited()])}


def _inherited() -> list[str]:
    return [entry for entry in (os.environ.get("PYTHONPATH") or "").split(os.pathsep) if entry]
