"""Times whole commands as a user runs them, from the start of the process to its end, and their memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

PLAN = ("plan", "llama3-70b", "--on", "h100:2x8", "--objective", "cost", "--max-tpot", "40ms")
SEARCH = ("plan", "llama3-70b", "--on", "h100:auto", "--max-chips", "512", "--objective", "cost")
"""The commands that are timed; the second looks at 1 to 512 chips."""


def time_command(arguments: Sequence[str], times: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """Seconds by the clock and of the CPU, and peak resident bytes, of `partita ARGUMENTS`; "failed" says why
    where it ended badly."""
    runs = []
    for _ in range(times):
        run = _one_run([sys.executable, "-m", "partita", *arguments], variables)
        if "failed" in run:
            return {"command": shown(arguments)} | run
        runs.append(run)
    seconds = [run["seconds"] for run in runs]
    return {
        "command": shown(arguments),
        "runs": times,
        "best_seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "median_cpu_seconds": statistics.median(run["cpu_seconds"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
    }


def shown(arguments: Sequence[str]) -> str:
    return " ".join(["partita", *arguments])


def _one_run(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | dict(variables)
        )
        # instead of process.wait(): this one says what the process used
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            return {"failed": lines[-1] if lines else f"exit status {process.returncode}"}
    # Linux counts in KiB, macOS in bytes; Linux counts this process at the start too, which is the smaller
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
