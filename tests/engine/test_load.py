"""`Engine.load`: what a plan says that the engine does not run is refused before the model is opened."""

from __future__ import annotations

import pytest

from partita.cost.prediction import Setting
from partita.engine.load import load
from partita.errors import InputError
from partita.planner.saved import SavedPlan
from partita.sharding import Mesh, parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def staged(stages: int) -> SavedPlan:
    workload = Workload(prompt=64, output=8, batch=8)
    model, cluster = catalogue_model("palm-8b"), parse_cluster("tpu-v4:2x2x2")
    setting = Setting(model, cluster, Mesh.of((2, 4 // stages)), Formats(), workload, stages=stages)
    roles = parse_layout("ws2d/batch", "xy")
    return SavedPlan(setting, roles, roles)


def test_a_plan_with_pipeline_stages_is_refused():
    with pytest.raises(InputError, match="1 is accepted") as error:
        load("nothing-of-this-name", plan=staged(2))
    assert (error.value.field, error.value.value) == ("stages", 2)


def test_one_stage_is_not():
    with pytest.raises(InputError) as error:
        load("nothing-of-this-name", plan=staged(1))
    assert error.value.field != "stages"
