"""What is free, read from made-up trees of proc and sys, and from devices that say what they have."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from partita.engine.free_memory import check_host, device_free_bytes, host_free_bytes
from partita.errors import InputError

V1_MOUNT = "33 25 0:30 {root} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
V2_MOUNT = "30 25 0:27 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MEMINFO = "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable: 6000 kB\n"
AVAILABLE = 6000 * 1024


def tree(at: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


def group(path: str, limit: str, used: int, stat: str = "", version: int = 2) -> dict[str, str]:
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    return {f"{path}/{names[0]}": limit, f"{path}/{names[1]}": f"{used}\n", f"{path}/memory.stat": stat}


UNLIMITED = "9223372036854771712\n"
STAT = "anon 100\ninactive_file 300\nactive_file 50\n"
CASES: dict[str, tuple[dict[str, str], int]] = {
    "a machine without cgroups": ({}, AVAILABLE),
    "version 2, the limit above the process's own group": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **group("sys/fs/cgroup/a", "2000\n", 900, STAT),
            **group("sys/fs/cgroup/a/b", "max\n", 800),
        },
        2000 - 900 + 350,
    ),
    "version 2, throttled below its limit": (
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **group("sys/fs/cgroup/a", "2000\n", 900),
            "sys/fs/cgroup/a/memory.high": "1000\n",
        },
        100,
    ),
    "version 1, whose totals count groups inside": (
        {
            "proc/self/cgroup": "5:cpu:/a\n4:memory:/a\n0::/\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/"),
            **group("sys/fs/cgroup/memory", UNLIMITED, 1, version=1),
            **group("sys/fs/cgroup/memory/a", "5000\n", 4000, "inactive_file 1\ntotal_inactive_file 70\n", 1),
        },
        1070,
    ),
    "a container that sees its own group as the top": (
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/docker/abc"),
            **group("sys/fs/cgroup/memory", "5000\n", 4000, version=1),
        },
        1000,
    ),
    "a group outside of what is mounted": (
        {
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **group("sys/fs/cgroup", "7000\n", 1000),
        },
        6000,
    ),
    "more in use than the limit": (
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **group("sys/fs/cgroup/a", "1000\n", 1500),
        },
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_of_what_the_system_says(name: str, tmp_path: Path):
    files, expected = CASES[name]
    assert host_free_bytes(tree(tmp_path, {"proc/meminfo": MEMINFO, **files})) == expected


@pytest.mark.parametrize(("limit", "taken"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_limits_of_the_process(limit: str, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/status": f"Name: x\n{taken}:\t 900 kB\n"})
    none = (resource.RLIM_INFINITY,) * 2
    one = getattr(resource, limit)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2048_000, -1) if which == one else none)
    assert host_free_bytes(root) == 2048_000 - 900 * 1024


def test_nothing_is_known_of_an_empty_tree(tmp_path: Path):
    assert host_free_bytes(tmp_path) is None


def test_this_machine_has_some():
    assert (host_free_bytes() or 1) > 0


def device(stats: Any) -> Any:
    def memory_stats() -> Any:
        if isinstance(stats, Exception):
            raise stats
        return stats

    return SimpleNamespace(memory_stats=memory_stats)


def test_the_fullest_device_counts():
    found = [device({"bytes_limit": 1000, "bytes_in_use": used}) for used in (10, 400, 0)]
    assert device_free_bytes(found) == 600


@pytest.mark.parametrize("stats", [None, {}, {"bytes_in_use": 3}, NotImplementedError()])
def test_a_device_that_does_not_say(stats: Any):
    assert device_free_bytes([device({"bytes_limit": 1}), device(stats)]) is None


def test_what_the_host_has_not_is_refused():
    check_host("a little", 1)
    with pytest.raises(InputError, match="a lot needs so much") as error:
        check_host("a lot", 10**18)
    assert (error.value.field, error.value.value) == ("memory", "1,000 PB")
