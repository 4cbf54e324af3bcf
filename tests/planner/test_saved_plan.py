"""Plans as files: what was chosen comes back, and a file with anything missing or wrong is refused."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.planner.settings import setting
from tests.sizes import many

from partita.cost.prediction import Setting, predict
from partita.errors import InputError
from partita.planner import Plan, make_plan
from partita.planner.saved import load_plan, setting_as_json
from partita.sharding import Mesh, parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster

PLAN = make_plan(setting("smollm2-135m", "tpu-v4:1x2x2", Formats(kv="int8"), batch=6, prompt=48, output=4))
WRITTEN: dict[str, Any] = PLAN.as_json()


def saved(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


# -- there and back -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        make_plan(setting("palm-540b", "tpu-v4:4x4x4", Formats(weights="int8"), batch=64, prefill_batch=1)),
    ],
    ids=["smollm2", "palm-540b"],
)
def test_a_saved_plan_comes_back_as_it_was_chosen(plan: Plan, file: Path):
    loaded = load_plan(saved(file, plan.as_json()))
    assert loaded.setting == plan.decode.setting
    prefill, decode = loaded.predictions()
    assert prefill.as_json() == plan.prefill.as_json()
    assert decode.as_json() == plan.decode.as_json()
    assert prefill.layout.storage == decode.layout.storage == plan.decode.layout.storage


def test_stages_chunks_prefix_and_samples_come_back(file: Path):
    on, sizes = parse_cluster("a100-80g:2x2"), {"prefix": 16, "chunk": 8, "samples": 3}
    workload = Workload(prompt=48, output=4, batch=6, **sizes)
    asked = Setting(catalogue_model("smollm2-135m"), on, Mesh.of((1, 2)), Formats(), workload, 2)
    written = WRITTEN | {"setting": setting_as_json(asked)}
    written |= {p: {"layout": {"ffn": "ws1d", "attention": "heads"}} for p in ("prefill", "decode")}
    loaded = load_plan(saved(file, written))
    assert loaded.setting == asked
    prefill, decode = loaded.predictions()
    roles = parse_layout("ws1d/heads", "xy")
    assert prefill.as_json() == predict(asked, "prefill", roles).as_json()
    assert decode.as_json() == predict(asked, "decode", roles).as_json()
    assert (prefill.batch, decode.batch, prefill.steps) == (2, 6, 4)


def test_a_file_of_before_there_were_stages_and_chunks_means_what_it_meant(file: Path):
    older = copy.deepcopy(WRITTEN)
    del older["setting"]["stages"]
    for name in ("prefix", "chunk", "samples"):
        del older["setting"]["workload"][name]
    assert load_plan(saved(file, older)).setting == PLAN.decode.setting


def test_a_layout_changed_by_hand_is_priced_anew(file: Path):
    changed = copy.deepcopy(WRITTEN)
    changed["prefill"]["layout"] = {
        "ffn": "x=f,y=e-gathered,z=replica",
        "attention": "x=heads,y=batch,z=none",
    }
    prefill, _ = load_plan(saved(file, changed)).predictions()
    assert str(prefill.layout.roles) == "x=f,y=e-gathered,z=replica/x=heads,y=batch,z=none"
    assert prefill.step_seconds != PLAN.prefill.step_seconds


# -- refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a plan; its schema must be partita.plan/1"),
        ("{}", "its schema must be partita.plan/1"),
        (WRITTEN | {"schema": "partita.plan/2"}, "its schema must be partita.plan/1"),
        (PLAN.decode.as_json(), "its schema must be partita.plan/1"),
    ],
    ids=["empty", "cut", "deep", "list", "nothing", "version", "prediction"],
)
def test_a_file_that_is_no_plan_is_refused(content: Any, message: str, file: Path):
    with pytest.raises(InputError, match=message) as caught:
        load_plan(saved(file, content))
    assert (caught.value.field, caught.value.value) == ("plan", file)


def test_bytes_that_are_no_text_are_refused(file: Path):
    file.write_bytes(b"\xff\xfe\x00plan")
    with pytest.raises(InputError, match="is not JSON"):
        load_plan(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError, match="cannot be read") as caught:
            load_plan(path)
        assert caught.value.field == "plan"


NEEDED = [
    ("setting",),
    *(("setting", part) for part in ("model", "cluster", "mesh", "formats", "workload")),
    ("setting", "model", "layers"),
    ("setting", "cluster", "chip"),
    ("setting", "cluster", "fabric"),
    ("setting", "workload", "batch"),
    *((phase, *rest) for phase in ("prefill", "decode") for rest in ([], ["layout"], ["layout", "ffn"])),
    ("decode", "layout", "attention"),
]


@pytest.mark.parametrize("path", NEEDED, ids=".".join)
def test_a_missing_key_is_named(path: tuple[str, ...], file: Path):
    changed = copy.deepcopy(WRITTEN)
    del inside(changed, path[:-1])[path[-1]]
    with pytest.raises(InputError) as caught:
        load_plan(saved(file, changed))
    assert caught.value.field == "plan"
    assert path[-1] in caught.value.message
    assert "missing" in caught.value.message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("setting", "mesh"), "x=2,y=2", "has 4 chips|axis 'z'|no role|roles"),
        (("setting", "mesh"), "x=8,y=1,z=1", "has 8 chips; its size must be that of tpu-v4:1x2x2, 4"),
        (("setting", "model", "layers"), 0, "layers = 0"),
        (("setting", "workload", "batch"), 0, "batch: 0: must be a whole number of at least 1"),
        (("setting", "workload", "batsh"), 1, "batsh"),
        (("setting", "workload", "prefix"), 48, "prefix: 48: must be a whole number from 0 to 47"),
        (("setting", "workload", "chunk"), 0, "chunk: 0: must be a whole number of at least 1"),
        (("setting", "stages"), 3, "stages: 3: must be a whole number that divides the slowest axis"),
        (("setting", "stages"), None, "stages: must be a whole number"),
        (("setting", "formats", "kv"), "int4", "kv = 'int4'"),
        (("decode", "layout", "ffn"), "ws3d", "ffn: ws3d: unknown layout"),
        (("prefill", "layout", "attention"), "x=heads", "no role for axis y, z"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_value_is_named(path: tuple[str, ...], value: Any, message: str, file: Path):
    changed = copy.deepcopy(WRITTEN)
    inside(changed, path[:-1])[path[-1]] = value
    if path == ("setting", "mesh") and value == "x=2,y=2":
        changed["decode"]["layout"]["ffn"] = "x=e,y=f,z=f"
    with pytest.raises(InputError, match=message) as caught:
        load_plan(saved(file, changed))
    assert caught.value.field == "plan"


def test_no_damage_to_a_value_is_anything_but_an_input_error(file: Path):
    """Every value of the setting and of the layouts replaced by others, of every kind in the full run."""
    paths = [("setting", *path) for path in leaves(WRITTEN["setting"])]
    paths += [(p, "layout", *path) for p in ("prefill", "decode") for path in leaves(WRITTEN[p]["layout"])]
    values = (None, -1, 0, 1.5, 10**30, float("nan"), "", "zzz", True, [], {}, ["x"], {"x": 1})
    refused, step = 0, 3 // many(1) or 1
    for number, path in enumerate(paths):
        for value in values[number % step :: step]:
            changed = copy.deepcopy(WRITTEN)
            inside(changed, path[:-1])[path[-1]] = value
            error = refusal(saved(file, changed))
            if error is not None:
                refused += 1
                assert (error.field, str(error).count("\n")) == ("plan", 0), (path, value)
    assert refused > 5 * len(paths) / step


def refusal(file: Path) -> InputError | None:
    """What a plan file is refused with; any other error than that goes up. What is read can be priced."""
    try:
        load_plan(file).predictions()
    except InputError as error:
        return error
    return None


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def leaves(value: Any) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside `value`, containers too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (key,)
        yield from ((key, *rest) for rest in leaves(inner))
