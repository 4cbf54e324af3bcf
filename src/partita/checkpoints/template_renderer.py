"""Renders chat templates in a process of their own, which is started once, kept, and replaced when it ends.

The process is `template_process`. It costs about 0.15 s of processor time and 22 MB once, then half a
millisecond a chat beside the rendering itself. An endless template ends that process, not this one.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("template_process.py")
_PATIENCE = 20.0
"""Seconds after which a process that has not answered is taken for stuck; one at work ends itself long
before that."""

_ATTEMPTS = 3
"""So many processes may be ended from outside, such as by the system for want of memory."""


class TemplateRenderer:
    """Any number of threads may render at once; the process does one rendering after the other."""

    def __init__(self):
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.patience = _PATIENCE

    def start(self) -> None:
        """Starts the process, so that it is ready when it is needed; returns at once.

        Does nothing where it cannot be started: rendering will say so.
        """
        with self._lock, suppress(OSError):
            self._running()

    def render(self, source: str, variables: Mapping[str, Any]) -> dict[str, str]:
        """What a template makes of variables of JSON's kinds: `text`; or why there is none: `invalid` says
        what is wrong with the template, `refused` why it does not take these variables, `limit` which limit
        it would pass.

        Raises TypeError or ValueError for variables that JSON does not have.
        """
        request = {"source": source, "variables": dict(variables)}
        line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock:
            found = None
            for _ in range(_ATTEMPTS):
                if found is None:
                    found = self._rendered(line)
        return found or {"refused": "the process that renders it is ended again and again"}

    def _rendered(self, line: bytes) -> dict[str, str] | None:
        """The reply to a request; None where the process has ended by something else than the request."""
        try:
            process = self._running()
        except OSError as error:
            return {"refused": f"no process to render it can be started: {error.strerror or error}"}
        reply, stuck = self._ask(process, line)
        if reply.endswith(b"\n"):
            return json.loads(reply.decode("utf-8", "surrogatepass"))
        self._end()
        if stuck:
            return {"limit": f"has not ended after {self.patience:g} seconds"}
        if process.returncode == -signal.SIGPROF:
            return {"limit": "takes too long: it may be endless"}
        return None

    def close(self) -> None:
        """Ends the process; the next rendering starts another."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            # all that this process can import, that one can; its own folder is no place to import from
            places = os.pathsep.join(place for place in sys.path if place)
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM)],
                env={**os.environ, "PYTHONPATH": places, "PYTHONWARNINGS": "ignore"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # nothing lies here that a fork would write once more
            )
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> tuple[bytearray, bool]:
        """The reply, which is no whole line where the process ended; and whether it had to be ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        stuck = threading.Event()

        def stop() -> None:
            stuck.set()
            process.kill()

        clock = threading.Timer(self.patience, stop)
        clock.daemon = True
        clock.start()
        try:
            left = memoryview(line)
            while left:
                left = left[process.stdin.write(left) :]
            reply = bytearray()
            while not reply.endswith(b"\n") and (part := process.stdout.read(1 << 16)):
                reply += part
        except BrokenPipeError:
            reply = bytearray()
        except BaseException:  # such as Ctrl-C: what it still answers would be taken for the next reply
            self._end()
            raise
        finally:
            clock.cancel()
        return reply, stuck.is_set()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _close(process)
        try:
            process.wait(0.2)  # it ends by itself when its input does
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """Leaves the process to the one that started it, of which this one is a fork."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            process.returncode = 0  # not this one's to wait for


def _close(process: subprocess.Popen[bytes]) -> None:
    """Closes this side's ends of its pipes."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


RENDERER = TemplateRenderer()
"""That of this process."""
atexit.register(RENDERER.close)
os.register_at_fork(after_in_child=RENDERER.forget)
