"""What a decode step that verifies drafted tokens takes beside one of a token, by the cost model."""

from __future__ import annotations

from dataclasses import replace

from partita.cost.step import StepOptions, StepShape, price_step
from partita.sharding.layout import Layout
from partita.sharding.mesh import Mesh
from partita.specs.formats import Formats
from partita.specs.hardware import Chip
from partita.specs.model import Model


def step_ratio(
    model: Model, layout: Layout, mesh: Mesh, formats: Formats, chip: Chip, shape: StepShape
) -> float:
    """Seconds of a decode step of `shape`, whose queries are each sequence's last token and drafts, over
    those of a step of one token; both at the peaks of a chip, without the time of communication.

    Of a format that the chip's makers give no peak for, its slowest stands in.
    """
    peak = chip.peak_flops.get(formats.activations, min(chip.peak_flops.values()))

    def seconds(shape: StepShape, options: StepOptions) -> float:
        ledger = price_step(model, layout, mesh.size, formats, shape, options).ledger
        flops, read = ledger.total("needed_flops"), ledger.total("weight_bytes") + ledger.total("kv_bytes")
        return max(float(flops) / peak, float(read) / chip.hbm_bandwidth)

    assert shape.context is not None
    one = replace(shape, queries=1, context=shape.context - shape.queries + 1)
    return seconds(shape, StepOptions(verifies=True)) / seconds(one, StepOptions())
