"""The program that renders chat templates: one request a line on standard input, one reply a line on output.

A template is code that comes with a checkpoint. Jinja's sandbox keeps it from files and from Python's
internals, but not from using time or memory without end: `{{ 'x' * 10**10 }}` is one call of C. So templates
run in a process of their own, whose memory is limited and which the system ends when a request has used its
processor time. It is run by its path and imports nothing of Partita; `template_renderer` starts it.

The environment is the one that transformers renders templates in (5.24, `utils/chat_template_utils.py`).
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

CPU_SECONDS = 0.6
"""Of one request; and as many for each of these bytes of messages, as a long chat takes longer."""
BYTES_PER_SHARE = 1 << 19
MEMORY_BYTES = 256 << 20
"""Of the process, and this for each byte of a request."""
MEMORY_PER_BYTE = 64
TEXT_CHARACTERS = 4 << 20
"""Of what is rendered, and this for each byte of a request."""
TEXT_PER_BYTE = 16
MESSAGE_CHARACTERS = 300
LARGE_BYTES = 1 << 20
"""Of a request after which the process ends, so that the next begins with little memory."""
_TOO_MUCH = {"limit": "needs too much memory"}


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, up to `{% endgeneration %}`; it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes of a class."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(Namespace):
    """`namespace` without names that begin with a low line."""

    def __init__(*arguments: Any, **named: Any):  # no `self`, which a template may use as a name
        itself, *given = arguments
        fields = dict(*given, **named)
        for name in fields:
            _check_name(name)
        Namespace.__init__(itself, fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace's attribute cannot begin with a low line: {name!r}")


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


_ENVIRONMENT = _environment()
_compiled = lru_cache(maxsize=16)(_ENVIRONMENT.from_string)


def answer(source: str, variables: dict[str, Any], most: int) -> dict[str, str]:
    """`text`, or why there is none: `invalid` says what is wrong with the template, `refused` why it does not
    take these variables, `limit` which one it would pass."""
    try:
        template = _compiled(source)
    except MemoryError:
        return _TOO_MUCH
    except Exception as error:  # whatever is wrong with it, the template cannot be used
        line = getattr(error, "lineno", None)
        return {"invalid": f"{_one_line(error)}{'' if line is None else f' (line {line})'}"}
    try:
        text = template.render(variables)
    except MemoryError:
        return _TOO_MUCH
    except Exception as error:  # a template may raise anything
        return {"refused": _one_line(error)}
    if len(text) > most:
        return {"limit": f"writes {len(text):,} characters; at most {most:,} are accepted"}
    return {"text": text}


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    if not said:
        return type(error).__name__
    return said if len(said) <= MESSAGE_CHARACTERS else said[:MESSAGE_CHARACTERS] + "..."


def serve() -> None:
    """Answers requests until standard input ends. The system ends the process by SIGPROF when one has used
    its time, also in the middle of a call of C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the process that asks
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    most_memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    for line in sys.stdin.buffer:
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        size = len(line)
        memory = MEMORY_BYTES + MEMORY_PER_BYTE * size
        if most_memory != resource.RLIM_INFINITY:
            memory = min(memory, most_memory)
        resource.setrlimit(resource.RLIMIT_AS, (memory, most_memory))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS * (1 + size // BYTES_PER_SHARE))
        try:
            found = answer(request["source"], request["variables"], TEXT_CHARACTERS + TEXT_PER_BYTE * size)
            reply = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except MemoryError:
            found = _TOO_MUCH
            reply = json.dumps(found).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
        if found is _TOO_MUCH or size > LARGE_BYTES:
            return


if __name__ == "__main__":
    serve()
