"""The JSON Schemas of what `--json` prints and `--save` writes, for the tests that validate against them.

They lie in `src/partita/schemas` and are open: more keys may be added to an object, none renamed or dropped
within a version. Every number has a `unit`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

NAMES = ("prediction-1", "plan-1", "clock-1", "calibration-1")
"""Of the schemas; the form `partita.plan/1` is `plan-1`. A plan refers to the schema of predictions."""


def json_schema(name: str) -> dict[str, Any]:
    """The schema `name`, JSON Schema draft 2020-12."""
    return json.loads(files("partita").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8"))
