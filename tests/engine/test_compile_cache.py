"""Compiled programs are kept in the user's cache folder, and no trouble there is ever a user's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import jax
import pytest

from partita.engine import compile_cache
from partita.engine.compile_cache import compiled_anew, keep_compiled, tidy

START = """
import sys, jax
from partita.engine.engine import Engine
from partita.engine.load import EngineRequest, placement_on
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.specs import Model
found = {"hits": 0, "misses": 0}
def count(event, **_):
    if event.startswith("/jax/compilation_cache/cache_"):
        found[event.rpartition("_")[2]] += 1
jax.monitoring.register_event_listener(count)
sizes = dict(layers=1, d_model=16, d_ff=32, heads=4, kv_heads=2, head_dim=4, vocabulary=64)
model = Model(name="tiny", **sizes)
engine = Engine.on(
    MemoryCheckpoint(model, random_parameters(model, seed=0)),
    placement_on("x=1", "ws2d/heads", "ws2d/heads"),
    EngineRequest(),
)
print(engine.generate([[1, 2, 3]], max_tokens=3), found["hits"], found["misses"])
"""


def start(**environment: str) -> tuple[str, int, int]:
    """What a process prints that generates with a tiny model, and how often it read or missed the cache."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PARTITA", "XDG"))}
    given["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    ran = subprocess.run(
        [sys.executable, "-c", START], env=given | environment, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    tokens, hits, misses = ran.stdout.rsplit(" ", 2)
    return tokens, int(hits), int(misses)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*-cache"))


def test_a_second_start_reads_what_the_first_compiled(tmp_path: Path):
    tokens, hits, misses = start(XDG_CACHE_HOME=str(tmp_path))
    kept = entries(tmp_path / "partita")
    assert hits == 0
    assert misses == len(kept) > 2
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in kept)
    # the process that wrote one was killed amid it; another is broken by what nobody looks for
    half, broken = kept[0], kept[1]
    half.write_bytes(half.read_bytes()[:-10])
    broken.write_bytes(b"\x78\x9cno entry")
    old = time.time() - 3600
    os.utime(half, (old, old))
    os.utime(broken, (old - 10, old - 10))
    os.utime(half.parent / "checked", (old - 1, old - 1))
    assert start(XDG_CACHE_HOME=str(tmp_path)) == (tokens, misses - 2, 2)  # and not a word
    assert entries(tmp_path / "partita") == kept
    assert zlib.decompress(half.read_bytes())


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """JAX without a cache, before and after; a home of its own."""
    monkeypatch.delenv("PARTITA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jax.config.values["jax_compilation_cache_dir"] is None
    return tmp_path


@pytest.mark.parametrize("off", ["none", "off", "0", ""])
def test_it_can_be_turned_off(unset: Path, monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv("PARTITA_CACHE", off)
    assert keep_compiled() is None
    assert not list(unset.iterdir())


def test_a_folder_that_cannot_be_made_is_no_folder(unset: Path):
    (unset / "partita").write_text("a file")
    assert keep_compiled() is None


def test_a_folder_that_others_may_write_to_is_not_used(unset: Path):
    own = compile_cache._own_folder()
    assert own is not None
    own.mkdir(parents=True)
    own.chmod(0o777)
    assert keep_compiled() is None


def test_the_users_own_cache_stays(unset: Path, monkeypatch: pytest.MonkeyPatch):
    jax.config.update("jax_compilation_cache_dir", str(unset / "own"))
    try:
        assert keep_compiled() is None
        with compiled_anew():
            assert jax.config.values["jax_compilation_cache_dir"] is None
        assert jax.config.values["jax_compilation_cache_dir"] == str(unset / "own")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    assert not (unset / "partita").exists()


def test_processors_that_differ_keep_their_code_apart(unset: Path, monkeypatch: pytest.MonkeyPatch):
    here = compile_cache._own_folder()
    monkeypatch.setattr(compile_cache, "_processor", lambda: "another")
    there = compile_cache._own_folder()
    assert here is not None
    assert there is not None
    assert here != there
    assert here.parent == there.parent == unset / "partita"


def test_tidying(tmp_path: Path):
    def entry(name: str, age: float, data: bytes) -> Path:
        path = tmp_path / f"{name}-cache"
        path.write_bytes(data)
        os.utime(path, (time.time() - age, time.time() - age))
        return path

    whole = zlib.compress(os.urandom(1000))
    half, empty = entry("half", 900, whole[:-1]), entry("empty", 900, b"")
    oldest, older, new = (entry(name, age, whole) for name, age in (("a", 800), ("b", 700), ("c", 100)))
    being_written = entry("d", 1, whole[:-1])
    tidy(tmp_path, 10_000)
    assert entries(tmp_path) == [oldest, older, new, being_written]
    assert not half.exists()
    assert not empty.exists()
    now = time.time()
    os.utime(being_written, (now - 100, now - 100))  # nobody went on
    os.utime(tmp_path / "checked", (now - 200, now - 200))
    tidy(tmp_path, 2 * len(whole))
    assert entries(tmp_path) == [older, new]


def test_entries_that_another_process_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entry = zlib.compress(bytes(1000))
    for name in "abc":
        (tmp_path / f"{name}-cache").write_bytes(entry)
    whole = compile_cache._whole

    def removed(path: str) -> bool:
        (tmp_path / "b-cache").unlink(missing_ok=True)
        return whole(path)

    monkeypatch.setattr(compile_cache, "_whole", removed)
    compile_cache.tidy(tmp_path, limit=len(entry))
    assert len(list(tmp_path.glob("*-cache"))) == 1
    assert (tmp_path / "checked").exists()


@pytest.mark.parametrize(
    "frame",
    [
        "28b52ffd2401090000615b6e8ca9",  # "a", with a checksum
        "28b52ffd600e0055000018616263010008aa6e08",  # "abc", ninety times
        # 500,000 zeros: several blocks, one of them a run
        "28b52ffda420a107005400001000000100fbff39c002020010000200100003090d008ec4e89a",
    ],
)
def test_half_an_entry_that_zstd_packed(frame: str, tmp_path: Path):
    """JAX writes zstd where it finds a library for it; these are of libzstd 1.5.4."""
    path, whole = tmp_path / "a-cache", bytes.fromhex(frame)
    path.write_bytes(whole)
    assert compile_cache._whole(str(path))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert not compile_cache._whole(str(path))
