"""Seconds of a step that verifies drafts beside one of a token: bytes at small batches, FLOPs at large."""

from __future__ import annotations

import pytest

from partita.cost.step import StepShape
from partita.planner.step_ratio import step_ratio
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats, catalogue_chip, catalogue_model


def test_a_step_ratio_is_of_bytes_then_of_flops():
    model, mesh = catalogue_model("smollm2-135m"), Mesh("x", (1,))
    roles = parse_layout("ws1d/batch", mesh.axes)
    storage, formats = plan_storage(model, mesh, roles, roles), Formats.all_in("f32")

    def ratio(batch: int) -> float:
        layout = resolve(roles, storage, mesh, batch, 1)
        shape = StepShape(batch, 8, 512)
        return step_ratio(model, layout, mesh, formats, catalogue_chip("xeon-8480"), shape)

    assert ratio(1) == pytest.approx(1, abs=0.01)
    assert 1.01 < ratio(8) < ratio(1024) < 8
