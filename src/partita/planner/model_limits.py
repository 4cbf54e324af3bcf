"""How long sequences a model takes: refused beyond learned positions, told beyond what it was trained for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.errors import InputError
from partita.specs.model import Model
from partita.specs.workload import Workload


@dataclass(frozen=True)
class Caution:
    """What a plan can be run in spite of. name: by which it is known."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "message": self.message}


def check_positions(model: Model, workload: Workload) -> None:
    """Raises InputError (field "context") where sequences are longer than a table of learned positions."""
    most = model.max_context
    if model.positions == "learned" and most is not None and workload.context > most:
        parts = f"prompt {workload.prompt:,} + output {workload.output:,}"
        raise InputError(
            "context",
            workload.context,
            f"{model.name} has {most:,} learned positions; {parts} and the cache must be no longer",
        )


def cautions(model: Model, workload: Workload) -> tuple[Caution, ...]:
    """What is to be said of sequences of these lengths."""
    most = model.max_context
    if most is None or workload.context <= most:
        return ()
    return (
        Caution(
            "beyond_trained_length",
            f"sequences of {workload.context:,} tokens are longer than the {most:,} that {model.name} was "
            "trained for",
        ),
    )


def longest_context(model: Model, fits: int, workload: Workload) -> int:
    """The longest context that fits and that the model was trained for; where the workload itself goes beyond
    that, the longest that fits."""
    most = model.max_context
    return fits if most is None or workload.context > most else min(fits, most)
