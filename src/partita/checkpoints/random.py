"""Random parameters for any model: for tests, and for timing a model nobody holds the weights of.

Knows nothing about files.
"""

from __future__ import annotations

import math

import numpy as np

from partita.program.parameters import all_parameter_shapes
from partita.specs.model import Model


def random_parameters(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Every parameter of the model in float32; the same seed gives the same values.

    Matrices are normal with standard deviation 1/sqrt(fan-in), so activations and logits stay near 1.
    Norm scales are 1 and biases 0, each plus a tenth of a normal number: a program that forgets either
    gives other logits.
    """
    generator = np.random.default_rng(seed)
    parameters = {}
    for name, shape in all_parameter_shapes(model).items():
        values = generator.standard_normal(shape, dtype=np.float32)
        kind = name.rpartition(".")[2]
        if kind.endswith("norm"):
            values *= np.float32(0.1)
            values[0] += 1
        else:
            values *= np.float32(1 / math.sqrt(_fan_in(kind, shape)))
        parameters[name] = values
    return parameters


def _fan_in(kind: str, shape: tuple[int, ...]) -> int:
    """How many numbers each output of a matrix sums; an embedding counts as the unembedding it may be."""
    if kind in ("embed", "unembed"):
        return shape[1]
    return math.prod(shape[:3]) if kind == "o" else shape[0]
