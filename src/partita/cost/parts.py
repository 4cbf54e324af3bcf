"""Which part of a model one pipeline stage holds and runs. Knows nothing about chips, layouts or time."""

from __future__ import annotations

from dataclasses import dataclass

from partita.errors import InputError
from partita.specs.model import Model


@dataclass(frozen=True)
class Part:
    """Layers in a row, by kind, and whether the model's two ends are with them."""

    global_layers: int
    local_layers: int
    embeds: bool = True
    unembeds: bool = True

    @property
    def layers(self) -> int:
        return self.global_layers + self.local_layers


def whole(model: Model) -> Part:
    """All of the model."""
    return Part(model.global_layers, model.local_layers)


def split_layers(model: Model, stages: int) -> tuple[Part, ...]:
    """The part of each stage, in order: layers as even as they go, the longer stages first.

    The first stage has the embedding, the last one the unembedding. Raises InputError (field "stages") unless
    there is a layer for every stage.
    """
    if not 1 <= stages <= model.layers:
        raise InputError(
            "stages",
            stages,
            f"{model.name} has {model.layers} layers; 1 to {model.layers} stages are accepted",
        )
    fewest, longer = divmod(model.layers, stages)
    found, start = [], 0
    for stage in range(stages):
        end = start + fewest + (stage < longer)
        globals_ = _global_layers(model, end) - _global_layers(model, start)
        found.append(Part(globals_, end - start - globals_, stage == 0, stage == stages - 1))
        start = end
    return tuple(found)


def _global_layers(model: Model, layers: int) -> int:
    """Of the first `layers` layers, those that attend to everything."""
    if model.window is None:
        return layers
    return layers // model.global_period if model.global_period else 0
