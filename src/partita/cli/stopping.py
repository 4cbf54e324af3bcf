"""Signals stop the command (Ctrl-C, SIGTERM, a terminal that closes): in one line, nothing half-written.

Where Python runs, `Stopped` is raised, so that whatever is open is closed. A step that compiles, or another
long call, is not waited for: a thread sees the signal too and ends the process once `_PATIENCE` is over, or
at a second signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Any

from partita import files

_PATIENCE = 2.0
"""Seconds for Python to take notice."""

asked: int | None = None
"""The signal that has come, if one has."""

_noticed = threading.Event()
_error = 2
"""Where the last line goes: standard error as it was at first, which something may have redirected since."""


class Stopped(KeyboardInterrupt):
    """A signal asks the command to stop."""


def prepare() -> None:
    """Has signals stop the command, but for those that are ignored, as `nohup` has it."""
    try:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(each, _stop)
    except ValueError:  # in another thread than the first, which signals do not reach
        return
    global _error
    with contextlib.suppress(OSError):
        _error = os.dup(2)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    sys.unraisablehook = _unraisable(sys.unraisablehook)


def release() -> None:
    """Signals are another's from here on, who ends the command in an orderly way."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def finish() -> None:
    """Ends the process where a signal has come; from here on one ends it at once."""
    if asked is not None:
        _end(asked)
    with contextlib.suppress(ValueError):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is _stop:
                signal.signal(each, lambda number, _: _end(number))


def leave_threads(code: int) -> None:
    """Ends the process where a thread is still busy, with a step that is compiled for drafts: Python would
    wait for it, and in a daemon thread XLA aborts the process that ends."""
    if all(thread.daemon or thread is threading.current_thread() for thread in threading.enumerate()):
        return
    with contextlib.suppress(OSError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    os._exit(code)


def _stop(number: int, _: Any) -> None:
    global asked
    asked = number
    _noticed.set()
    raise Stopped


def _watch(read: int) -> None:
    """Ends the process where Python does not take notice of a signal, or the user of its effect."""
    number = os.read(read, 1)[0]
    if _noticed.wait(_PATIENCE):
        number = os.read(read, 1)[0]
    _end(number, flushes=False)  # which may be what the first thread waits in


def _unraisable(usual: Any) -> Any:
    """What is raised in a finaliser or a callback goes no further: there, `Stopped` ends the process."""

    def hook(found: Any) -> None:
        if asked is not None and issubclass(found.exc_type, Stopped):
            _end(asked)
        usual(found)

    return hook


def _end(number: int, flushes: bool = True) -> None:
    """Ends the process; what other threads compile or run is not waited for."""
    with contextlib.suppress(Exception):
        files.remove_unfinished()
    with contextlib.suppress(Exception):
        if flushes:
            sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(_error, b"stopped\n")
    os._exit(128 + number)
