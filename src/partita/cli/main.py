"""The command line: registers the commands and turns errors into one line (or one JSON object).

Exit codes: 0 done, 2 wrong input, 1 anything else.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys

import typer

from partita.cli import (
    calibrate,
    catalogue,
    demo,
    explain,
    generate,
    glossary,
    plan,
    predict,
    quality,
    quantize,
    reproduce,
    verify,
)
from partita.cli.usage import usage_error
from partita.errors import InputError, out_of_memory

app = typer.Typer(
    name="partita",
    help="Plans how a Transformer is split over chips for inference, and runs what it planned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan.command)
app.command("predict")(predict.command)
app.command("explain")(explain.command)
app.command("models")(catalogue.models)
app.command("clusters")(catalogue.clusters)
app.command("generate")(generate.command)
app.command("quantize")(quantize.command)
app.command("quality")(quality.command)
app.command("calibrate")(calibrate.command)
app.command("verify")(verify.command)
app.command("reproduce")(reproduce.command)
app.command("glossary")(glossary.command)
app.command("demo")(demo.command)

_STOPPED = 130


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and exits."""
    arguments = sys.argv[1:] if arguments is None else arguments
    code = run(arguments)
    if code == _STOPPED:  # whatever still compiles or runs in other threads is not waited for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


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
        return app(args=arguments, prog_name="partita", standalone_mode=False) or 0
    except InputError as error:
        return _refuse(error, arguments)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 1
    except typer.TyperException as error:
        return _refuse(usage_error(error, arguments), arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return _STOPPED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            too_long = InputError("path", str(error.filename)[:80], "is too long for a file's name")
            return _refuse(too_long, arguments)
        raise
    except Exception as error:
        if os.environ.get("PARTITA_TRACEBACK"):
            raise
        if (short := out_of_memory(error)) is not None:
            return _refuse(short, arguments)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"internal error: {text} (PARTITA_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1


def _refuse(error: InputError, arguments: list[str]) -> int:
    field, message = _as_typed(" ".join(error.field.split()), arguments), " ".join(error.message.split())
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
