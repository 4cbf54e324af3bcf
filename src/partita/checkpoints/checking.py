"""Whether a file holds exactly the tensors its model needs: every wrong one is named in one error.

Knows nothing about formats or families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from partita.checkpoints.sources import Source
from partita.errors import InputError
from partita.program.parameters import Shape

_SHOWN = 3


def check_tensors(
    path: Path,
    sources: Mapping[str, Source],
    stored: Mapping[str, Shape],
    harmless: Sequence[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Raises one InputError (field "model", value the path) for all missing, extra and mis-shaped tensors.

    harmless: patterns of names that may be there. reasons: part of an extra tensor's name -> what it is.
    """
    expected = {piece.stored: piece.shape for source in sources.values() for piece in source.pieces}
    extra = [name for name in stored if name not in expected and not is_any(name, harmless)]
    found = sorted({why for part, why in (reasons or {}).items() if any(part in name for name in extra)})
    why = f" ({', '.join(found)})" if found else ""
    missing = [name for name in expected if name not in stored]
    misshapen = [
        f"{name} ({stored[name]}, expected {shape})"
        for name, shape in expected.items()
        if stored.get(name, shape) != shape
    ]
    problems = [
        some("lacks", missing),
        some("has other shapes than its configuration gives for", misshapen),
        some(f"holds what is not run here{why}:", map(repr, extra)),
    ]
    if any(problems):
        message = "; ".join(problem for problem in problems if problem)
        raise InputError("model", str(path), f"{message}; give a checkpoint with exactly its model's weights")


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name fits one of these patterns (as of fnmatch)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def some(what: str, names: Iterable[str]) -> str:
    """The first few names after a verb, and how many more there are; empty for none."""
    found = list(names)
    if not found:
        return ""
    rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{what} {', '.join(f'{name:.80}' for name in found[:_SHOWN])}{rest}"
