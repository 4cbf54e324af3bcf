"""What positions do to attention: frequencies of rotary ones, slopes of ALiBi. Their numbers are made here.

NumPy, for every interpreter alike, and an interpreter's own arrays where the lengths of sequences decide.
Knows nothing about how a head is turned by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from partita.specs.model import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    Model,
    OtherScaling,
    YarnScaling,
)


def frequencies(model: Model, local: bool = False) -> np.ndarray:
    """float32 [rotary_dim / 2]: radians that each pair of a head turns from one position to the next.

    Pair i turns by base^(-2i / rotary_dim) (Su et al. 2021, arXiv 2104.09864), scaled as the model says. A
    local layer that has its own base is not scaled. Where the length of a sequence decides (`by_length`)
    these are those of a sequence no longer than the original length. Raises ValueError for a kind of scaling
    that is known by name alone.
    """
    turns = _turns(model, local)
    return _scaled(model, turns, _has_own_base(model, local)).astype(np.float32)


def by_length(model: Model, local: bool = False) -> Callable[[Any, ModuleType], Any] | None:
    """The frequencies of sequences by their length, where that decides; None where it does not.

    What is returned takes lengths [...] in tokens and the library of their arrays, such as `numpy`, and gives
    float32 [..., rotary_dim / 2].
    """
    scaling = None if _has_own_base(model, local) else model.rotary_scaling
    if isinstance(scaling, DynamicScaling):
        turns, exponents = _turns(model, local), _exponents(model)
        # base (f n / m - (f - 1))^(d / (d - 2)), with n tokens where m were trained for
        powers = (-exponents * model.rotary_dim / (model.rotary_dim - 2)).astype(np.float32)
        own, factor, first = turns.astype(np.float32), scaling.factor, scaling.original_max_position

        def stretched(lengths: Any, xp: ModuleType) -> Any:
            beyond = xp.maximum(lengths - first, 0).astype(np.float32)
            return own * (1 + factor / first * beyond)[..., None] ** powers

        return stretched
    if isinstance(scaling, LongropeScaling):
        turns, first = _turns(model, local), scaling.original_max_position
        short, long = (
            (turns / np.array(factors)).astype(np.float32)
            for factors in (scaling.short_factors, scaling.long_factors)
        )
        return lambda lengths, xp: xp.where((lengths > first)[..., None], long, short)
    return None


def magnitude(model: Model, local: bool = False) -> float:
    """What sines and cosines are multiplied by: 1 but for YaRN and LongRoPE, which sharpen attention so."""
    scaling = model.rotary_scaling
    if not isinstance(scaling, YarnScaling | LongropeScaling) or _has_own_base(model, local):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if isinstance(scaling, LongropeScaling):
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position))
    return 0.1 * math.log(scaling.factor) + 1


def alibi_slopes(model: Model) -> np.ndarray:
    """float32 [K G]: how much each head's scores fall from one position to the next, before any softmax.

    Of n heads, a power of 2, head i from 1 to n has the slope 2^(-i b / n), b being `alibi_max_bias`. Of
    other numbers the first heads are those of the next lower power, and the others every second one of the
    next higher (Press et al. 2022, arXiv 2108.12409, with the authors' code).
    """
    lower = 1 << (model.heads.bit_length() - 1)
    exponents = [(i + 1) / lower for i in range(lower)]
    exponents += [(2 * i + 1) / (2 * lower) for i in range(model.heads - lower)]
    slopes = model.alibi_scale * 2.0 ** (-model.alibi_max_bias * np.array(exponents))
    return slopes.astype(np.float32).reshape(model.kv_heads, model.group)


def _has_own_base(model: Model, local: bool) -> bool:
    return local and model.local_rotary_base is not None


def _exponents(model: Model) -> np.ndarray:
    return np.arange(0, model.rotary_dim, 2) / model.rotary_dim


def _turns(model: Model, local: bool) -> np.ndarray:
    """Those of the base alone."""
    base = model.local_rotary_base if _has_own_base(model, local) else model.rotary_base
    return (base or model.rotary_base) ** -_exponents(model)


def _scaled(model: Model, turns: np.ndarray, own: bool) -> np.ndarray:
    match None if own else model.rotary_scaling:
        case None | DynamicScaling():
            return turns
        case LinearScaling(factor=factor):
            return turns / factor
        case Llama3Scaling() as scaling:
            return _llama3(scaling, turns)
        case YarnScaling() as scaling:
            return _yarn(scaling, turns, model.rotary_base, model.rotary_dim)
        case LongropeScaling(short_factors=factors):
            return turns / np.array(factors)
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
