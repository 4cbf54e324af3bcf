"""Mistakes in the command line itself (options, their number and type) as errors that name field and value.

Knows the parser's errors by what they carry, and nothing about any command.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import typer

from partita.errors import InputError


def usage_error(error: typer.TyperException, arguments: list[str]) -> InputError:
    """What the parser refuses in `arguments`: an option missing, unknown or of another type."""
    parameter, option = getattr(error, "param", None), getattr(error, "option_name", None)
    if parameter is not None:
        return _parameter_error(error, parameter, arguments)
    if option and hasattr(error, "possibilities"):
        near = " or ".join(getattr(error, "possibilities", None) or ())
        return InputError(
            option, None, f"is not an option here; {f'did you mean {near}? ' if near else ''}{_help(error)}"
        )
    if option:
        return InputError(option.lstrip("-"), None, f"needs a value; {_help(error)}")
    commands = getattr(getattr(error, "ctx", None), "command", None)
    if names := getattr(commands, "commands", None):
        given = next((argument for argument in arguments if not argument.startswith("-")), None)
        return InputError("command", given, f"accepted are {', '.join(names)}; see partita --help")
    return InputError("arguments", None, f"{error.message.rstrip('.')}; {_help(error)}")


def _parameter_error(error: typer.TyperException, parameter: Any, arguments: list[str]) -> InputError:
    options = [name for name in parameter.opts if name.startswith("--")]
    field = options[0].removeprefix("--") if options else parameter.name
    if hasattr(error, "param_type"):  # only what is missing carries it
        return InputError(field, None, f"is needed: {parameter.help}")
    values = [value for option in options for value in _values(option, arguments)]
    return InputError(field, values[-1] if values else None, error.message.removeprefix("Input "))


def _values(option: str, arguments: list[str]) -> list[str]:
    """What follows an option, as `--option value` or `--option=value`."""
    found = [after for name, after in pairwise(arguments) if name == option]
    return found + [a.removeprefix(f"{option}=") for a in arguments if a.startswith(f"{option}=")]


def _help(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path if context else 'partita'} --help"
