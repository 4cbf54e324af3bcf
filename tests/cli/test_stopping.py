"""Ctrl-C and its kin stop the command in one line, whatever it is doing, and leave nothing half-written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sizes import some

import partita

_AT_IMPORT = """
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
"""


def stopped(before: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, after these lines of Python."""
    # in the background of a shell this process ignores Ctrl-C, and so would its children
    start = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    lines = [start, before, "from partita.cli.main import main", "main(sys.argv[1:])"]
    path = os.pathsep.join([str(Path(partita.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "number"),
    some(1, [("partita.cli.app", signal.SIGINT), ("jax", signal.SIGTERM), ("numpy", signal.SIGINT)]),
)
def test_a_signal_while_modules_are_imported(module: str, number: signal.Signals, tiny: Path):
    before = _AT_IMPORT.format(module=module, number=int(number))
    done = stopped(before, "generate", tiny, "--prompt-ids", "1")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "stopped\n")


@pytest.mark.parametrize("module", ["typing", "re", "threading"])
def test_a_signal_before_the_command_has_begun_shows_no_traceback(module: str):
    """What takes longest of its first imports comes once a signal ends it without one."""
    done = stopped(_AT_IMPORT.format(module=module, number=int(signal.SIGINT)), "models")
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert (done.stdout, done.stderr.removesuffix("stopped\n")) == ("", "")


@pytest.mark.parametrize("step", ["prepare", "finish"])
def test_a_signal_while_signals_are_prepared_for(step: str):
    before = f"""
from partita.cli import stopping
plain = stopping.{step}
def {step}():
    if "{step}" == "prepare":
        plain()
    stopping.{step} = plain
    os.kill(os.getpid(), signal.SIGINT)
stopping.{step} = {step}
"""
    done = stopped(before, "models", "--json")
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_a_call_that_python_cannot_leave_is_not_waited_for(tiny: Path):
    """Hours of hashing, in C, stand for a step that compiles."""
    before = """
import hashlib, threading, partita.checkpoints.open
def busy(_):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
partita.checkpoints.open.open_checkpoint = busy
"""
    done = stopped(before, "generate", tiny, "--prompt-ids", "1")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_it_is_said_where_standard_error_is_redirected(tiny: Path):
    """While the `tokenizers` library reads a text, in C for as long as it likes."""
    before = """
import hashlib, threading, partita.checkpoints.open
from partita.checkpoints.tokenizer_library import attempt_quietly
def busy(_):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    attempt_quietly(lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1))
partita.checkpoints.open.open_checkpoint = busy
"""
    done = stopped(before, "generate", tiny, "--prompt-ids", "1")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_quantising_that_is_stopped_leaves_nothing(tiny: Path, tmp_path: Path):
    before = "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)"
    done = stopped(before, "quantize", tiny, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "stopped\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_signal_that_is_ignored_stays_so(tiny: Path):
    """As `nohup` and a shell's background jobs have it."""
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    before += _AT_IMPORT.format(module="numpy", number=int(signal.SIGHUP))
    done = stopped(before, "models", "--json")
    assert (done.returncode, done.stderr) == (0, "")
