"""The conditions of a measurement: machine, load, versions, date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def conditions(core: int | None) -> dict[str, Any]:
    """What figures of this run depend on; `core`: the one rates are pinned to, None where none can be."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "rates_pinned_to_core": core,
        "load_average_1_min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in ("partita", "numpy")},
    }


def last_core() -> int | None:
    """The last core that this process may run on, None where the system cannot pin."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed, run from source"
