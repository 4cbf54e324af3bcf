"""The published schemas: real output validates, wrong output does not, every key and unit is documented."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.planner.pairs import phase_of
from tests.planner.settings import palm, setting
from tests.schemas import NAMES, json_schema, undocumented, validator

from partita.planner import Plan, make_plan
from partita.specs import Formats, Workload


def test_the_published_schemas_are_these():
    assert NAMES == ("calibration-1", "clock-1", "load-1", "plan-1", "prediction-1", "simulation-1")


def written(value: Any) -> Any:
    """As a reader gets it."""
    return json.loads(json.dumps(value, allow_nan=False))


def predictions() -> dict[str, Any]:
    padded = setting("smollm2-135m", "tpu-v4:1x2x4", None, batch=5, prompt=96, output=5)
    own = {name: getattr(padded.workload, name) for name in Workload.model_fields}
    parts = replace(padded, workload=Workload(**(own | {"prefix": 16, "chunk": 32, "samples": 2})))
    return {
        "decode": phase_of(palm(Formats(weights="int8"), batch=64), "decode", "ws2d/batch").as_json(),
        "prefill": phase_of(palm(batch=4), "prefill", "wg-xyz/batch").as_json(),
        "padded": phase_of(padded, "decode", "ws2d/batch").as_json(),
        "does not fit": phase_of(palm(batch=600), "decode", "ws2d/heads").as_json(),
        "one chip": phase_of(
            setting("smollm2-135m", "tpu-v4:1x1x1", batch=1), "decode", "ws1d/heads"
        ).as_json(),
        "in chunks": phase_of(parts, "prefill", "ws1d/heads").as_json(),
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(palm(Formats(weights="int8"), batch=64, prefill_batch=1))


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema(name: str):
    Draft202012Validator.check_schema(json_schema(name))
    assert json_schema(name)["title"] == f"partita.{name.replace('-', '/')}"


@pytest.mark.parametrize("name", predictions())
def test_predictions_validate_and_have_no_key_that_is_not_documented(name: str):
    found = written(predictions()[name])
    validator("prediction-1").validate(found)
    assert list(undocumented(found, json_schema("prediction-1"))) == []


def test_a_plan_validates_and_has_no_key_that_is_not_documented(plan: Plan):
    found = written(plan.as_json())
    validator("plan-1").validate(found)
    assert list(undocumented(found, json_schema("plan-1"))) == []


def test_more_keys_may_be_added(plan: Plan):
    found = written(plan.as_json()) | {"later": 1}
    found["decode"]["later"] = found["decode"]["bound"]["later"] = {"x": 1}
    validator("plan-1").validate(found)
    assert set(undocumented(found, json_schema("plan-1"))) == {
        ".later",
        ".decode.later",
        ".decode.bound.later",
    }


def test_a_missing_key_or_a_wrong_kind_is_found(plan: Plan):
    whole = written(plan.as_json())
    for path in (["objective"], ["setting", "workload", "prompt"], ["decode", "bound", "step_seconds"]):
        broken = copy.deepcopy(whole)
        inner = broken
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = ["no such thing"]
        assert not validator("plan-1").is_valid(broken)
        del inner[path[-1]]
        assert not validator("plan-1").is_valid(broken)
    assert not validator("plan-1").is_valid(whole | {"schema": "partita.plan/2"})


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        for inner in schema.get("properties", {}).values():
            yield inner
        for inner in schema.values():
            yield from subschemas(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from subschemas(inner)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_described_and_every_number_has_a_unit(name: str):
    found = list(subschemas(json_schema(name)))
    assert len(found) > 10
    for schema in found:
        assert schema.get("description"), schema
        kinds = schema.get("type", "")
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if kinds & {"number", "integer"} or schema.get("items", {}).get("type") in ("number", "integer"):
            assert schema.get("unit"), schema
