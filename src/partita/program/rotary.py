"""The frequencies of rotary positions: base, part of a head, and scaling become numbers here.

NumPy, for every interpreter alike. Knows nothing about how a head is turned by them.
"""

from __future__ import annotations

import math

import numpy as np

from partita.specs.model import LinearScaling, Llama3Scaling, Model, OtherScaling, YarnScaling


def frequencies(model: Model, local: bool = False) -> np.ndarray:
    """float32 [rotary_dim / 2]: radians that each pair of a head turns from one position to the next.

    Pair i turns by base^(-2i / rotary_dim) (Su et al. 2021, arXiv 2104.09864), scaled as the model says. A
    local layer that has its own base is not scaled. Raises ValueError for a kind of scaling that is known by
    name alone.
    """
    own = local and model.local_rotary_base is not None
    base = model.local_rotary_base if own and model.local_rotary_base else model.rotary_base
    turns = base ** (-np.arange(0, model.rotary_dim, 2) / model.rotary_dim)
    return _scaled(model, turns, own).astype(np.float32)


def magnitude(model: Model, local: bool = False) -> float:
    """What sines and cosines are multiplied by: 1 but for YaRN, which sharpens attention with it."""
    scaling = model.rotary_scaling
    if not isinstance(scaling, YarnScaling) or (local and model.local_rotary_base is not None):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1


def _scaled(model: Model, turns: np.ndarray, own: bool) -> np.ndarray:
    match None if own else model.rotary_scaling:
        case None:
            return turns
        case LinearScaling(factor=factor):
            return turns / factor
        case Llama3Scaling() as scaling:
            return _llama3(scaling, turns)
        case YarnScaling() as scaling:
            return _yarn(scaling, turns, model.rotary_base, model.rotary_dim)
        case OtherScaling(name=name):
            raise ValueError(f"rotary scaling {name} is known by its name alone")


def _llama3(scaling: Llama3Scaling, turns: np.ndarray) -> np.ndarray:
    """Scales each by how often it turns in the original length; apply_scaling in Meta's Llama 3.1 code."""
    rotations = scaling.original_max_position * turns / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((rotations - low) / (high - low), 0, 1)
    return kept * turns + (1 - kept) * turns / scaling.factor


def _yarn(scaling: YarnScaling, turns: np.ndarray, base: float, dim: int) -> np.ndarray:
    """Scales by a ramp over the pairs; section 3.2 of arXiv 2309.00071, with the authors' bounds."""

    def pair(rotations: float) -> float:
        """The pair, a fraction, that turns so often in the original length."""
        length = scaling.original_max_position / (2 * math.pi * rotations)
        return dim * math.log(length) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001
    divided = np.clip((np.arange(len(turns)) - first) / width, 0, 1)
    return divided * turns / scaling.factor + (1 - divided) * turns
