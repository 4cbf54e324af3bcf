"""JAX's persistent compilation cache, kept in the user's cache folder: what was compiled once is read later.

On for engines unless the user has set a cache of JAX's own, or PARTITA_CACHE: a folder to keep it in, or
"none". What is read from it runs in this process, so that a folder others may write to is not used. Compiled
code is of one kind of processor: machines that share a home folder keep theirs apart. No trouble with the
cache is ever an error: what cannot be read is compiled, what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

VARIABLE = "PARTITA_CACHE"
LIMIT = 2 << 30
"""Bytes that are kept at most; those that have not been used for longest go first."""
_SETTLED = 60.0
"""Seconds after which nobody is still writing a file."""
_CHECKED = "checked"
"""A file whose time says up to when entries have been found whole."""


def keep_compiled() -> Path | None:
    """Turns the cache on for this process; the folder, or None where there is none or JAX has its own.

    Does nothing the second time. To be called before the process compiles what is to be kept.
    """
    own = _own_folder()
    if own is None or jax.config.values["jax_compilation_cache_dir"] not in (None, str(own)):
        return None
    if jax.config.values["jax_compilation_cache_dir"] == str(own):
        return own
    if not jax.config.values["jax_enable_compilation_cache"] or not _usable(own):
        return None
    with contextlib.suppress(OSError):
        tidy(own)
    # an entry that cannot be read or written is compiled or left out, which is no news to a user
    warnings.filterwarnings("ignore", r"Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", str(own))
    compilation_cache.reset_cache()  # it may have been found missing before
    return own


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Everything is compiled here: for what reads a compiled program rather than runs it."""
    own = jax.config.values["jax_compilation_cache_dir"]
    if own is None:
        yield
        return
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", own)
        compilation_cache.reset_cache()


def _own_folder() -> Path | None:
    """Where this machine's compiled code is kept, which need not exist; None where none is to be."""
    given = os.environ.get(VARIABLE)
    if given is not None and given.strip().lower() in ("", "none", "off", "0"):
        return None
    try:
        folder = Path(given or platformdirs.user_cache_dir("partita", appauthor=False)).expanduser()
    except RuntimeError:  # no home folder
        return None
    return folder / f"{platform.machine()}-{_processor()}" if folder.is_absolute() or given else None


def _processor() -> str:
    """A name for what this processor can do: code compiled on it may use all of it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            wanted = ("flags", "Features", "model", "cpu family", "CPU part")
            known = sorted({line.strip() for line in lines if line.split("\t")[0].strip() in wanted})
    except OSError:
        known = [platform.node()]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:12]


def _usable(folder: Path) -> bool:
    """Whether it can be used, and was made where it is not there: its owner's alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def tidy(folder: Path, limit: int = LIMIT) -> None:
    """Removes what a process that ended amid a write has left, and what is too much.

    JAX writes an entry in place, and leaves one alone that is there: half an entry would be compiled again at
    every start. Entries are read for it once.
    """
    stamp, entries = folder / _CHECKED, []
    checked = stamp.stat().st_mtime if stamp.exists() else 0.0
    now = seen = time.time()
    with os.scandir(folder) as found:
        for entry in found:
            if not entry.name.endswith("-cache"):
                continue
            try:
                state = entry.stat()
            except FileNotFoundError:  # another process has removed it
                continue
            if state.st_mtime >= checked:
                if not _whole(entry.path):
                    if now - state.st_mtime > _SETTLED:
                        Path(entry.path).unlink(missing_ok=True)
                    else:
                        seen = min(seen, state.st_mtime)  # it is looked at again
                    continue
                with contextlib.suppress(FileNotFoundError):
                    os.utime(entry.path, (state.st_atime, state.st_mtime))  # that was no use of it
            entries.append((max(state.st_atime, state.st_mtime), state.st_size, entry.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        Path(path).unlink(missing_ok=True)
        total -= size
    stamp.touch()
    os.utime(stamp, (seen, seen))


def _whole(path: str) -> bool:
    """Whether an entry is all there; one in a form that nothing here reads is taken for whole."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if b"\x28\xb5\x2f\xfd".startswith(data[:4]):  # zstd's, which JAX writes where it finds a library
            return _zstd_whole(data)
        if data[:1] != b"\x78":
            return True
        stream = zlib.decompressobj()
        stream.decompress(data)
        return stream.eof
    except (OSError, zlib.error):
        return False


def _zstd_whole(frame: bytes) -> bool:
    """Whether a frame of zstd has its end: a header, then blocks, of which the last says that it is, then a
    checksum where the header says so (RFC 8878, section 3.1.1)."""
    if len(frame) < 5:
        return False
    about = frame[4]
    alone = about >> 5 & 1
    place = 5 + (1 - alone) + (0, 1, 2, 4)[about & 3] + (alone, 2, 4, 8)[about >> 6]
    last = False
    while not last:
        block = int.from_bytes(frame[place : place + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if place + 3 > len(frame) or kind == 3:
            return False
        place += 3 + (1 if kind == 1 else size)  # of a run there is one byte
    return place + 4 * (about >> 2 & 1) <= len(frame)
