"""JSON Schemas of what `--json` prints and `--save` writes: in `schemas/` prediction-1.json, plan-1.json,
clock-1.json and calibration-1.json.

They are open: more keys may be added to an object, none renamed or dropped within a version. Every number has
a `unit`. Knows nothing about how the objects are made.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from partita.errors import InputError

NAMES = ("prediction-1", "plan-1", "clock-1", "calibration-1")
"""Of the schemas; the form `partita.plan/1` is `plan-1`. A plan refers to the schema of predictions."""


def json_schema(name: str) -> dict[str, Any]:
    """The schema `name`, JSON Schema draft 2020-12. Raises InputError (field "schema") on another."""
    if name not in NAMES:
        raise InputError("schema", name, f"accepted are {', '.join(NAMES)}")
    return json.loads(files("partita").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8"))
