"""Writing files so that nothing is ever half-written."""

from __future__ import annotations

import errno
import os
import tempfile
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
    temporary = ""
    try:
        path = path.resolve()  # through links, which stay
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(field, path, "is not a regular file; give the path of a file to write")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8") if isinstance(text, str) else text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(field, path, f"cannot be written: {error.strerror}") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)  # gone where it has become `path`
