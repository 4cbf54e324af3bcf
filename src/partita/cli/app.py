"""The command line: registers the commands and turns errors into one line (or one JSON object).

Exit codes: 0 done, 2 wrong input, 128 and the signal's number where one stopped it, 1 anything else.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from partita.cli import stopping
from partita.cli.usage import usage_error
from partita.errors import InputError, NotFiniteError, one_line, out_of_memory

_COMMANDS = {
    "plan": "plan:command",
    "predict": "predict:command",
    "explain": "explain:command",
    "simulate": "simulate:command",
    "models": "catalogue:models",
    "clusters": "catalogue:clusters",
    "generate": "generate:command",
    "serve": "serve:command",
    "batch": "batch:command",
    "bench": "bench:command",
    "quantize": "quantize:command",
    "quality": "quality:command",
    "calibrate": "calibrate:command",
    "verify": "verify:command",
    "reproduce": "reproduce:command",
    "glossary": "glossary:command",
    "demo": "demo:command",
}
"""Module and function of each command, in the order of the help."""


def app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The commands; of a command line that begins with one, that one alone: all take a while to import."""
    found = typer.Typer(
        name="partita",
        help="Plans how a Transformer is split over chips for inference, and runs what it planned.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    found.callback()(lambda: None)  # a single command is a command too
    for name in arguments[:1] if arguments and arguments[0] in _COMMANDS else _COMMANDS:
        module, _, function = _COMMANDS[name].partition(":")
        found.command(name)(getattr(import_module(f"partita.cli.{module}"), function))
    return found


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code; one line, never a traceback, for a user's mistake."""
    try:
        code = _outcome(arguments)
        _flush()  # errors are printed too, and what is printed may not fit
        return code
    except BrokenPipeError:  # whoever read the output has gone; nothing is left to tell them
        _drop_output()
        return 1
    except OSError as error:
        print(f"error: {error.strerror or error}", file=sys.stderr)
        try:
            _flush()
        except OSError:
            _drop_output()
        return 1


def _flush() -> None:
    print(end="", flush=True)  # unlike `sys.stdout.flush`, also where there is no standard output


def _drop_output() -> None:
    """Sends what is still to be printed nowhere, so that the interpreter does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _outcome(arguments: list[str]) -> int:
    """The exit code of a command line, whose errors are printed. Raises OSError for output that fails."""
    try:
        return app(arguments)(args=arguments, prog_name="partita", standalone_mode=False) or 0
    except InputError as error:
        return _refuse(error, arguments)
    except NotFiniteError as error:
        _refuse(error, arguments)
        return 1
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 1
    except typer.TyperException as error:
        return _refuse(usage_error(error, arguments), arguments)
    except KeyboardInterrupt:
        return _stopped()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            too_long = InputError("path", str(error.filename)[:80], "is too long for a file's name")
            return _refuse(too_long, arguments)
        raise
    except Exception as error:
        if stopping.asked is not None:  # what a library has made of it
            return _stopped()
        if os.environ.get("PARTITA_TRACEBACK"):
            raise
        if (short := out_of_memory(error)) is not None:
            return _refuse(short, arguments)
        text = one_line(f"{type(error).__name__}: {error}")
        print(f"internal error: {text} (PARTITA_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1


def _stopped() -> int:
    """The exit code of a command that a signal has stopped; where one has come, the process says so as it
    ends."""
    if stopping.asked is None:
        print("stopped", file=sys.stderr)
    return 128 + (stopping.asked or signal.SIGINT)


def _refuse(error: InputError | NotFiniteError, arguments: list[str]) -> int:
    field, message = _as_typed(one_line(error.field), arguments), one_line(error.message)
    value = error.value if isinstance(error.value, str | int | None) else str(error.value)
    if isinstance(error.value, float) and math.isfinite(error.value):
        value = error.value
    if "--json" in arguments:
        # in ASCII, which any output takes: an argument may be bytes that are no text
        print(json.dumps({"error": {"field": field, "value": value, "message": message}}))
    else:
        shown = f"{field}: {value}: {message}" if value is not None else f"{field}: {message}"
        print(f"error: {' '.join(shown.split())}", file=sys.stderr)
    return 2


def _as_typed(field: str, arguments: list[str]) -> str:
    """An option's field as the user wrote it: `max_tpot` is `max-tpot` where `--max-tpot` was given."""
    option = field.replace("_", "-")
    return option if f"--{option}" in {argument.split("=")[0] for argument in arguments} else field
