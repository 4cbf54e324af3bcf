"""Writing files and folders so that nothing is ever half-written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partita.errors import InputError


def check_place(path: Path, field: str) -> None:
    """Raises InputError on `field` where `write_whole` could not write; for a check before long work."""
    folder = path.resolve().parent
    reason = None
    if path.is_dir():
        reason = errno.EISDIR
    elif not folder.is_dir():
        reason = errno.ENOTDIR if folder.exists() else errno.ENOENT
    elif not os.access(folder, os.W_OK):
        reason = errno.EACCES
    if reason is not None:
        raise InputError(field, path, f"cannot be written: {os.strerror(reason)}")


def write_whole(path: Path, text: str | bytes, field: str) -> None:
    """Writes beside `path`, then renames: the file is the old one or the new one, never a part.

    A `text` that is no bytes is written as UTF-8.

    Raises InputError on `field` where it cannot be written; the old file is then as it was.
    """
    with _writing(path, field):
        path = path.resolve()  # through links, which stay
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(field, path, "is not a regular file; give the path of a file to write")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with _unfinished_at(temporary):
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8") if isinstance(text, str) else text)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)


@contextmanager
def whole_folder(path: Path, field: str) -> Iterator[Path]:
    """A folder to write into, beside `path`, which it becomes at the end; until then nothing is there.

    Raises InputError on `field` where it, or a file in it, cannot be written; what was written is then gone.
    """
    with _writing(path, field):
        temporary = tempfile.mkdtemp(dir=path.resolve().parent, prefix=f".{path.name}.")
        with _unfinished_at(temporary):
            yield Path(temporary)
            os.chmod(temporary, 0o777 & ~_umask())
            os.rename(temporary, path)


@contextmanager
def _writing(path: Path, field: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(field, path, f"cannot be written: {error.strerror or error}") from None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


_unfinished: set[str] = set()


@contextmanager
def _unfinished_at(path: str) -> Iterator[None]:
    """While it lasts, something is being written at a temporary path, of which nothing is left at the end."""
    _unfinished.add(path)
    try:
        yield
    finally:
        _remove(path)  # gone where it has been renamed
        _unfinished.discard(path)


def remove_unfinished() -> None:
    """Removes what is being written, for a process that ends at once."""
    for path in list(_unfinished):
        _remove(path)


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)
