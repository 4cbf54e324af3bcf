"""Rules of the stored weights: dims that every split must divide, and the scales of quantised channels.

The price of a padded dim is that of the same layout priced once more with this one dim as the model has it,
split into fractions: an ideal that no run reaches, and the least that padding can be blamed for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from partita.advice.rule import Rule, either, nearest_divisors, saved
from partita.cost.prediction import Prediction, padded_dims, predict
from partita.planner.pair import Basis
from partita.sharding.layout import Storage
from partita.sharding.padding import Number, product
from partita.sharding.spec import parse
from partita.specs.model import Model
from partita.specs.parameters import dim_sizes, parameter_table


@dataclass(frozen=True)
class _Unpadded(Storage):
    """A storage whose `dims` are as large as the model has them."""

    dims: str = ""

    # floats, so that what the chips do not divide is not rounded down
    def padded(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: Model, sizes: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        own = dim_sizes(model)
        return {**super().padded(model, sizes), **{dim: float(own[dim]) for dim in self.dims}}


def weight_rules(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """The padded dims, then the channels of int8 weights that are split."""
    setting, storage = prediction.setting, prediction.layout.storage
    model, sizes = setting.model, setting.mesh.size
    stored = padded_dims(model, storage, sizes)
    over_heads, over_all = storage.k_axes + storage.g_axes, storage.padded_axes
    dims = [
        ("heads", "KG", over_heads),
        *([] if model.group == 1 else [("kv_heads", "K", storage.k_axes)]),
        ("d_ff", "F", over_all),
        ("d_model", "E", over_all),
        ("vocabulary", "V", over_all),
    ]
    for name, letters, axes in dims:
        size, needed = stored[name]
        if needed != size:
            yield _padded(prediction, basis, name, letters, size, int(needed), axes)
    yield from _channels(prediction)


_GROWS = {
    "heads": "attention weights",
    "kv_heads": "key and value weights and cache",
    "d_ff": "feed-forward weights",
    "d_model": "columns of every weight",
    "vocabulary": "embedding",
}


def _padded(
    prediction: Prediction, basis: Basis, name: str, letters: str, size: int, needed: int, axes: str
) -> Rule:
    setting, storage = prediction.setting, prediction.layout.storage
    whole = {field.name: getattr(storage, field.name) for field in fields(Storage)}
    ideal = predict(setting, prediction.phase, prediction.layout.roles, _Unpadded(**whole, dims=letters))
    ways = product(setting.mesh.size, axes)
    used = "".join(axis for axis in axes if setting.mesh.size[axis] > 1)
    return Rule(
        name=name,
        hard=False,
        message=f"{name}: {size:,} padded to {needed:,}, split {ways} ways over axes {used}: "
        f"{needed / size - 1:.1%} more {_GROWS[name]}",
        alternative=f"{either(nearest_divisors(size, ways))} ways divide {size:,}",
        size=size,
        needed=needed,
        bytes_per_chip=max(0.0, float(prediction.memory_bytes["total"] - ideal.memory_bytes["total"])),
        **saved(prediction, ideal, basis),
    )


_SCALE_BYTES = 4


def _channels(prediction: Prediction) -> Iterator[Rule]:
    """int8 weights have one float32 scale for each output channel. An axis that splits the summed dim splits
    channels: no value changes, since all parts share a scale, but each chip keeps the scales of its parts."""
    setting, storage = prediction.setting, prediction.layout.storage
    model, sizes = setting.model, setting.mesh.size
    if setting.formats.weights != "int8" or model.latent is not None:
        return
    padded, shardings = storage.padded(model, sizes), storage.weights(model)
    # output channels a chip holds, and over how many chips the summed dims of the matrix are split
    matrices = []
    for name, row in parameter_table(model).items():
        if row.in_block and row.quantisable:
            sharding, own = parse(shardings[name]), row.padded_sizes(padded)
            scale = sharding.only(row.channels)
            channels = math.prod(own[dim] for dim in scale.dims) / product(sizes, "".join(scale.axes))
            over = product(sizes, "".join(sharding.axes)) // product(sizes, "".join(scale.axes))
            matrices.append((channels, over))
    split = model.layers * sum(channels * (parts - 1) / parts for channels, parts in matrices)
    if split:
        axes = "".join(a for a in storage.e + storage.f if sizes[a] > 1)
        held = model.layers * sum(channels for channels, _ in matrices)
        yield Rule(
            name="quantisation",
            hard=False,
            message=f"quantisation: int8 channels are split over axes {axes}, so their scales "
            f"({_SCALE_BYTES} bytes each, counted with the weights) are kept on every part",
            alternative="no layout of several chips avoids it; the values are those of whole channels",
            size=int(held - split),
            needed=int(held),
            bytes_per_chip=_SCALE_BYTES * split,
        )
