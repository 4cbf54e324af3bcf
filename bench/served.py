"""An engine in a process of its own that answers cases one after another (see `peers/serve.py`).

Knows which interpreter and which script, not what an engine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from environments import DidNotRun
from peers.serve import Case, question

START_SECONDS, ANSWER_SECONDS = 300, 300
"""Longest that loading may take, and an answer beyond the seconds that it is asked to measure."""


class Served:
    """A started engine; `about` is what it says of itself. Raises DidNotRun where it does not start."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the engine
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=variables | dict(environment or {}),
            )
        except OSError as error:
            self._errors.close()
            raise DidNotRun(f"did not start: {error.strerror or error}") from None
        try:
            self.about = self._answer(START_SECONDS)
        except DidNotRun:
            self.close()
            raise

    def ask(self, case: Case, seconds: float) -> list[float]:
        """Seconds of each step of a case. Raises DidNotRun where the engine fails at it."""
        try:
            print(question(case, seconds), file=self._input, flush=True)
        except OSError:
            raise DidNotRun(self._last_words()) from None
        found = self._answer(seconds + ANSWER_SECONDS)
        if "failed" in found:
            raise DidNotRun(found["failed"])
        return found["step_seconds"]

    def close(self) -> None:
        """Ends the engine: it stops at the end of its input, or is stopped."""
        with contextlib.suppress(OSError):  # what it never read
            self._input.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line; an engine that takes longer is ended."""
        late = threading.Timer(seconds, self._process.kill)
        late.start()
        line = self._output.readline()
        late.cancel()
        try:
            return json.loads(line)
        except ValueError:
            raise DidNotRun(line.strip() or self._last_words()) from None

    def _last_words(self) -> str:
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "gave no answer"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {status}"
