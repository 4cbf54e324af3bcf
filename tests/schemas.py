"""The JSON Schemas of what `--json` prints and `--save` writes, from `partita/schemas`, and checks by them.

They are open: more keys may be added to an object, none renamed or dropped within a version.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

_FOLDER = files("partita") / "schemas"
NAMES = tuple(sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir()))
"""The form `partita.plan/1` is `plan-1`. A plan refers to the schema of predictions."""


def json_schema(name: str) -> dict[str, Any]:
    """The schema `name`, JSON Schema draft 2020-12."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


REGISTRY = Registry().with_resources(
    [(json_schema(name)["$id"], Resource.from_contents(json_schema(name))) for name in NAMES]
)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema(name), registry=REGISTRY)


def undocumented(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Keys of a value that its schema says nothing about; what a schema leaves open is not looked into."""
    if "$ref" in schema:
        schema = json_schema(schema["$ref"].rpartition(":")[2])
    for choice in schema.get("oneOf", ()):
        if choice.get("type") != "null" and value is not None:
            yield from undocumented(value, choice, path)
            return
    if isinstance(value, dict):
        known, rest = schema.get("properties"), schema.get("additionalProperties")
        for key, inner in value.items():
            if known and key in known:
                yield from undocumented(inner, known[key], f"{path}.{key}")
            elif isinstance(rest, dict):
                yield from undocumented(inner, rest, f"{path}.*")
            elif known is not None:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        for inner in value:
            yield from undocumented(inner, schema.get("items", {}), f"{path}[]")
