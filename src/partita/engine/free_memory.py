"""What memory is free: on this machine for this process, and on each accelerator.

The machine's is the least of what Linux says is available, of every cgroup that the process is in, and of the
limits of the process. Where a system does not say (macOS), it is all that the machine has; where nothing is
known it is None, and nothing is compared with it. File pages that the kernel can drop count as free. Knows
nothing about models.

Sources: the kernel's Documentation/filesystems/proc.rst, admin-guide/cgroup-v1/memory.rst and
admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.specs.units import format_bytes

FORCE = "--force goes on all the same"
_ROOT = Path("/")
_DROPPED = ("inactive_file", "active_file", "slab_reclaimable")
"""What of a cgroup's memory the kernel can take back without asking."""


def host_free_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that this process can still take of the machine; None where that is unknown.

    root: where proc and sys are.
    """
    found = [*_available(root), *_of_cgroups(root), *_of_limits(root)]
    return max(0, min(found)) if found else None


def check_host(what: str, needed: int) -> None:
    """Raises InputError (field "memory") where so many bytes are not free on this machine."""
    free = host_free_bytes()
    if free is not None and needed > free:
        message = f"{what} needs so much, and {format_bytes(free)} are free on this machine; {FORCE}"
        raise InputError("memory", format_bytes(needed), message)


def device_free_bytes(devices: Sequence[Any]) -> int | None:
    """Bytes free on the fullest of some accelerators; None where one does not say."""
    found = []
    for device in devices:
        stats: dict[str, int] = {}
        with contextlib.suppress(Exception):  # some runtimes have no such numbers, and say so by raising
            stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        found.append(max(0, stats["bytes_limit"] - stats.get("bytes_in_use", 0)))
    return min(found, default=None)


def give_back() -> None:
    """Frees what nothing refers to, and gives the system what the C library keeps for the next request."""
    gc.collect()  # JAX too lets go of arrays it has copied from at a collection
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # musl has no such function
            ctypes.CDLL(None).malloc_trim(0)


def _available(root: Path) -> Iterator[int]:
    if (free := _table(root / "proc/meminfo").get("MemAvailable")) is not None:
        yield free
    elif root == _ROOT:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_limits(root: Path) -> Iterator[int]:
    """What RLIMIT_AS and RLIMIT_DATA leave of the process's mappings."""
    status = _table(root / "proc/self/status")
    for limit, taken in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY and taken in status:
            yield most - status[taken]


def _of_cgroups(root: Path) -> Iterator[int]:
    """What each cgroup leaves, from the process's own up to the outermost that can be seen."""
    paths = dict(_own_groups(root))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), (after.split() + [""] * 3)[:3]
        if kind == "cgroup2":
            path, files = paths.get(""), (("memory.max", "memory.high"), "memory.current", "")
        elif kind == "cgroup" and "memory" in options.split(","):
            path, files = paths.get("memory"), (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
        else:
            continue
        if path is None or len(fields) < 5:
            continue
        top = root / fields[4].lstrip("/")
        inside = os.path.relpath(path, fields[3]) if path.startswith(fields[3]) else "."
        group = top if inside.startswith("..") else top / inside
        while True:
            yield from _of_cgroup(group, *files)
            if group == top or top not in group.parents:
                break
            group = group.parent


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    """The process's cgroup by controller; "" is that of version 2."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            yield controller, path


def _of_cgroup(group: Path, limits: Sequence[str], usage: str, prefix: str) -> Iterator[int]:
    """What one cgroup leaves under each of its limits, if there are any. prefix: of the numbers in its
    memory.stat that include the groups inside it."""
    used = _text(group / usage).strip()
    if not used.isdecimal():
        return
    stat = dict(line.split()[:2] for line in _text(group / "memory.stat").splitlines() if " " in line)
    droppable = sum(int(stat.get(prefix + name, stat.get(name, 0))) for name in _DROPPED)
    for name in limits:
        most = _text(group / name).strip()
        if most.isdecimal():  # of version 2 "max" is none; of version 1 none is a number beyond any memory
            yield int(most) - int(used) + min(droppable, int(used))


def _table(path: Path) -> dict[str, int]:
    """Bytes by name, of lines such as "MemAvailable: 123 kB"."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
