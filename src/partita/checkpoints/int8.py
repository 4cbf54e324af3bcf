"""Symmetric int8 weights, one float32 scale for each output channel, in NumPy.

A channel's scale is the largest magnitude in it divided by 127, so that value = int8 * scale with an error of
at most half a scale. A channel is all the numbers that make one output of a matrix: fused matrices (the M of
keys and values, or of gate and up) never share one.

Source: Pope et al. 2022 (arXiv 2211.05102), section 3.6, after AQT (github.com/google/aqt).
"""

from __future__ import annotations

import numpy as np

from partita.checkpoints.container import Index
from partita.errors import InputError
from partita.specs.parameters import Parameter

LARGEST = 127


def quantise(parameter: Parameter, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the values' shape, and the float32 scales of this parameter's channels.

    values: the whole parameter, or a part that holds all of each of its channels. A channel of zeros gets
    scale 1. Values too small for a scale that float32 can divide by become 0.

    Raises InputError (field "model", value the parameter's name) for values that are not finite.
    """
    others = parameter.summed_axes
    most, least = values.max(axis=others, keepdims=True), values.min(axis=others, keepdims=True)
    largest = np.maximum(most, -least).astype(np.float32)  # without a copy of all magnitudes
    if not np.isfinite(largest).all():
        raise InputError("model", parameter.name, "holds numbers that are not finite, which int8 cannot hold")
    scale = largest / np.float32(LARGEST)
    scale[scale < np.finfo(np.float32).tiny] = 1
    scaled = values / scale
    return np.rint(scaled, out=scaled).astype(np.int8), scale.squeeze(axis=others)


def dequantise(parameter: Parameter, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The float32 values of one parameter, or of a part of it with the scales of its channels."""
    return values * np.expand_dims(scale, parameter.summed_axes)


def channel_index(parameter: Parameter, index: Index) -> Index:
    """The index of the scales that belong to an index of the parameter; () is all of either."""
    others = parameter.summed_axes
    return tuple(part for axis, part in enumerate(index) if axis not in others)
