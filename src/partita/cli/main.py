"""Where the `partita` command begins: it can be stopped from here on, before the commands are imported.

Imports next to nothing, for the commands take a second to import.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and exits; a signal that asks for it stops it in one line, whatever it does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # in another thread than the first
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback until there is more
    from partita.cli import stopping

    code = 1
    try:
        stopping.prepare()
        code = run(sys.argv[1:] if arguments is None else arguments)
        stopping.finish()
    except BaseException:  # what has become of `Stopped` under way, where that was it
        if stopping.asked is None:
            raise
        stopping.finish()
    stopping.leave_threads(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code; one line, never a traceback, for a user's mistake."""
    from partita.cli.app import run

    return run(arguments)
