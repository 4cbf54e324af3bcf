"""Predictions and plans as tables: what a reader is told, with its units."""

from io import StringIO

import pytest
from rich.console import Console, RenderableType

from partita.cost.prediction import Setting
from partita.planner import make_plan
from partita.report import tables
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload, catalogue_model, parse_cluster

ON = parse_cluster("tpu-v4:2x2x2")


def setting(model: str, **workload: int) -> Setting:
    sizes = Workload(**({"prompt": 512, "output": 16} | workload))
    return Setting(catalogue_model(model), ON, Mesh.of(ON.shape), Formats(), sizes)


def text_of(thing: RenderableType) -> str:
    console = Console(width=200, file=StringIO(), record=True)
    console.print(thing)
    return console.export_text()


def test_a_plan_shows_both_phases_the_reasons_and_the_runners_up():
    plan = make_plan(setting("palm-8b", batch=32), top=4)
    text = text_of(tables.plan(plan))
    assert "palm-8b (8.63B parameters) on tpu-v4:2x2x2, mesh x=2,y=2,z=2" in text
    for found in (plan.prefill, plan.decode):
        assert str(found.layout.roles) in text
        assert f"{found.mfu:.1%}" in text
    for reason in plan.reasons:
        assert reason in text
    for pair in plan.runners_up:
        assert f"{pair.prefill.layout.roles}" in text
    assert "no run on these chips can be faster" in text


def test_memory_is_shown_by_part_and_adds_up():
    plan = make_plan(setting("palm-8b", batch=32))
    memory = plan.decode.memory_bytes
    row = next(
        line for line in text_of(tables.predictions([plan.decode])).splitlines() if "of 34.4 GB" in line
    )
    parts = "weights 2.16 GB, kv 69.2 MB, activations 4.39 MB, runtime 1.34 GB"
    assert f"3.57 GB of 34.4 GB: {parts}" in row
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "activations", "runtime"))


@pytest.mark.parametrize(("model", "shown"), [("smollm2-135m", True), ("palm-8b", False)])
def test_padding_is_shown_where_there_is_any(model: str, shown: bool):
    text = text_of(tables.plan(make_plan(setting(model, batch=8))))
    assert ("heads 9 -> 12" in text) == shown
    assert ("parameters more" in text) == shown


def test_what_attention_splits_is_named_by_dim_and_axes():
    plan = make_plan(setting("palm-8b", batch=32))
    assert plan.decode.layout.roles.attention == "batch"
    what, _, axes = tables.attention_split(plan.decode).partition(" over ")
    assert (what, set(axes)) == ("batch", set("xyz"))
