"""Rules of the stored weights: dims that every split must divide, and the scales of quantised channels.

The price of a padded dim is that of the same layout priced once more with this one dim as the model has it,
split into fractions: an ideal that no run reaches, and the least that padding can be blamed for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from partita.advice.rule import Rule, either, nearest_divisors
from partita.advice.rule_price import saved
from partita.cost.prediction import Prediction, predict
from partita.planner.basis import Basis
from partita.sharding.layout import Storage, product
from partita.specs.model import Model


@dataclass(frozen=True)
class _Unpadded(Storage):
    """A storage whose `dims` are as large as the model has them."""

    dims: str = ""

    def padded(self, model: Model, sizes) -> dict:
        own = {
            "E": model.d_model,
            "F": model.d_ff,
            "V": model.vocabulary,
            "K": model.kv_heads,
            "G": model.group,
        }
        return super().padded(model, sizes) | {dim: float(own[dim]) for dim in self.dims}


def weight_rules(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """The padded dims, then the channels of int8 weights that are split."""
    setting, storage = prediction.setting, prediction.layout.storage
    model, sizes = setting.model, setting.mesh.size
    padded = storage.padded(model, sizes)
    over_heads, over_all = storage.k_axes + storage.g_axes, storage.padded_axes
    kv = [] if model.group == 1 else [("kv_heads", "K", model.kv_heads, padded["K"], storage.k_axes)]
    dims = [
        ("heads", "KG", model.heads, padded["K"] * padded["G"], over_heads),
        *kv,
        ("d_ff", "F", model.d_ff, padded["F"], over_all),
        ("d_model", "E", model.d_model, padded["E"], over_all),
        ("vocabulary", "V", model.vocabulary, padded["V"], over_all),
    ]
    for name, letters, size, needed, axes in dims:
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
    padded = storage.padded(model, sizes)
    heads = padded["K"] * padded["G"] * padded["D"]
    over_e, over_f = product(sizes, storage.e), product(sizes, storage.f)
    over_kv = over_e * product(sizes, storage.fg)
    # output channels a chip holds, and over how many chips the summed dim of the matrix is split
    matrices = [
        (heads / over_f, over_e),
        (2 * padded["K"] * padded["D"] / product(sizes, storage.fk), over_kv),
        (model.ffn_inputs * padded["F"] / over_f, over_e),
        (padded["E"] / over_e, over_f),
        (padded["E"] / over_e, over_f),
    ]
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
