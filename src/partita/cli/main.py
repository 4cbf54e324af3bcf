"""Where the `partita` command begins: it can be stopped from here on, before the commands are imported.

Imports next to nothing, for the commands take a second to import.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and exits; a signal that asks for it stops it in one line, whatever it does."""
    of_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if of_python and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback until there is more
    from partita.cli import stopping

    stopping.prepare()
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except BaseException:  # what has become of `Stopped` under way, where that was it
        if stopping.asked is None:
            raise
        code = 1
    stopping.finish()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
        _exit(code)  # something is being compiled that nobody needs any more
    sys.exit(code)


def _exit(code: int) -> None:
    """Ends the process without waiting for other threads."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code; one line, never a traceback, for a user's mistake."""
    from partita.cli.app import run

    return run(arguments)
