"""The Transformer once more, unsharded, in plain NumPy: what every other way of running it must equal.

Written from the equations and for reading; shares no code with the program under test, only the `Model`
that says what to run. One sequence at a time, every token at once, in float64. Of what a `Model` can say it
leaves out latent attention. `prompt`: how many tokens were read at once, all unless given; every later one
was read when it was the last, which matters where the length of a sequence decides how its tokens turn.

Shapes: T tokens, E d_model, K key/value heads, G query heads to each, D head dim, F d_ff, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from partita.specs.model import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    Model,
    YarnScaling,
)

Parameters = Mapping[str, np.ndarray]


def logits(
    model: Model, parameters: Parameters, tokens: Sequence[int], prompt: int | None = None
) -> np.ndarray:
    """Logits [T, V] after each of the tokens."""
    return _forward(model, parameters, tokens, prompt)[0]


def kv(model: Model, parameters: Parameters, tokens: Sequence[int]) -> np.ndarray:
    """What a cache holds after the tokens: [layers, T, 2, K, D], keys (turned by their position), values."""
    return _forward(model, parameters, tokens)[1]


def greedy(model: Model, parameters: Parameters, tokens: Sequence[int], steps: int) -> list[int]:
    """The `steps` tokens that follow, each the likeliest after all before it; no cache, no end token."""
    sequence = list(tokens)
    for _ in range(steps):
        sequence.append(int(logits(model, parameters, sequence, len(tokens))[-1].argmax()))
    return sequence[len(tokens) :]


def _forward(
    model: Model, parameters: Parameters, tokens: Sequence[int], prompt: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.maximum(np.arange(len(tokens)) + 1, prompt or len(tokens))
    x = parameters["embed"][list(tokens)].astype(np.float64)  # [T, E]
    x = x * (model.embedding_scale or 1)
    if model.positions == "learned":
        x = x + parameters["positions"][: len(x)]
    cache = []
    for i in range(model.layers):
        start = f"layers.{i}."
        layer = {
            name.removeprefix(start): value.astype(np.float64)
            for name, value in parameters.items()
            if name.startswith(start)
        }
        x, keys_and_values = block(model, x, layer, is_local(model, i), lengths)
        cache.append(keys_and_values)
    x = normalise(model, x, parameters.get("final_norm"))
    table = parameters["embed" if model.tied_embedding else "unembed"]
    scores = x @ table.astype(np.float64).T * (model.logit_scale or 1)
    return softcapped(scores, model.logit_softcap), np.stack(cache)


def is_local(model: Model, layer: int) -> bool:
    """Whether a layer attends to its window only: all do, but every n-th or those with these numbers."""
    if model.window is None:
        return False
    if model.global_at is not None:
        return layer not in model.global_at
    return model.global_period is None or (layer + 1) % model.global_period != 0


def block(
    model: Model, x: np.ndarray, layer: Parameters, local: bool, lengths: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The residual x [T, E] after one block, and the keys and values [T, 2, K, D] of its attention."""
    scale = model.residual_scale or 1
    y = normalise(model, x, layer.get("norm"))
    attended, keys_and_values = attention(model, y, layer, local, lengths)
    if model.block == "parallel":
        if model.separate_norms:
            y = normalise(model, x, layer.get("ffn_norm"))
        return x + scale * attended + scale * feed_forward(model, y, layer), keys_and_values
    if model.post_norms:
        attended = normalise(model, attended, layer.get("post_norm"))
    x = x + scale * attended
    fed = feed_forward(model, normalise(model, x, layer.get("ffn_norm")), layer)
    if model.post_norms:
        fed = normalise(model, fed, layer.get("ffn_post_norm"))
    return x + scale * fed, keys_and_values


def normalise(model: Model, x: np.ndarray, vectors: np.ndarray | None) -> np.ndarray:
    """RMSNorm or LayerNorm over the last dim; `vectors` are its scale and, for LayerNorm, its bias."""
    if model.norm == "layernorm":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + model.norm_epsilon)
    if vectors is None:
        return x
    x = x * vectors[0]
    return x + vectors[1] if model.norm == "layernorm" else x


def softcapped(x: np.ndarray, cap: float | None) -> np.ndarray:
    """Bent so that it stays within the cap on either side."""
    return x if cap is None else cap * np.tanh(x / cap)


def attention(
    model: Model, y: np.ndarray, layer: Parameters, local: bool = False, lengths: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Causal grouped-query attention of y [T, E]: its output [T, E], and keys and values [T, 2, K, D].

    lengths [T]: tokens of the sequence when each was read.
    """
    query = np.einsum("te,ekgd->tkgd", y, layer["q"]) + layer.get("q_bias", 0)
    key, value = np.einsum("te,eckd->ctkd", y, layer["kv"])
    if model.qkv_bias:
        key, value = key + layer["kv_bias"][0], value + layer["kv_bias"][1]
    if model.qk_norm:
        query = normalise(model, query, layer.get("q_norm"))
        key = normalise(model, key, layer.get("k_norm"))
    if model.positions == "rotary":
        turns, size = rotary_turns(model, local, lengths)
        neighbours = model.rotary_pairs == "interleaved"
        query, key = (rotate(x, turns, size, neighbours) for x in (query, key))
    key, value = cached(key), cached(value)
    scale = model.attention_scale or model.head_dim**-0.5
    scores = softcapped(np.einsum("tkgd,skd->kgts", query, key) * scale, model.attention_softcap)
    now, then = np.arange(len(y))[:, None], np.arange(len(y))[None, :]
    if model.positions == "alibi":
        slopes = np.reshape(alibi_slopes(model), (model.kv_heads, -1, 1, 1))
        scores = scores - slopes * (now - then)
    seen = then <= now  # a token sees itself and the past
    if local and model.window is not None:
        seen &= now - then < model.window
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("kgts,skd->tkgd", weights, value)
    out = np.einsum("tkgd,kgde->te", mixed, layer["o"]) + layer.get("o_bias", 0)
    return out, np.stack([key, value], axis=1)


def alibi_slopes(model: Model) -> list[float]:
    """How much the scores of each head fall with each position, as the authors write it."""

    def of_a_power_of_two(heads: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(heads) - math.log2(model.alibi_max_bias))))
        return [start * start**i for i in range(heads)]

    lower = 2 ** math.floor(math.log2(model.heads))
    slopes = of_a_power_of_two(lower) + of_a_power_of_two(2 * lower)[0::2][: model.heads - lower]
    return [model.alibi_scale * slope for slope in slopes]


def cached(rows: np.ndarray) -> np.ndarray:
    """What a cache gives back of keys or values [T, K, D]: just these, unless a test says else."""
    return rows


def rotate(
    x: np.ndarray, turns: Sequence[float] | np.ndarray, size: float = 1, neighbours: bool = False
) -> np.ndarray:
    """Turns pair i of x [T, ..., D] by position * turns[i]; what the pairs do not reach stays.

    Pairs are i and i + the number of turns, or neighbours. turns: [pairs], or [T, pairs]. size: what sines
    and cosines are multiplied by.
    """
    pairs = np.shape(turns)[-1]
    first = np.arange(pairs) * (2 if neighbours else 1)
    second = first + (1 if neighbours else pairs)
    angles = np.arange(len(x))[:, None] * np.asarray(turns)  # [T, pairs]
    angles = angles.reshape(len(x), *[1] * (x.ndim - 2), pairs)
    cos, sin = size * np.cos(angles), size * np.sin(angles)
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., first] * sin + x[..., second] * cos
    return turned


def rotary_turns(
    model: Model, local: bool, lengths: np.ndarray | None = None
) -> tuple[list[float] | np.ndarray, float]:
    """How far each pair turns from one position to the next, and what its sines and cosines are times.

    Where lengths decide: for each token of a sequence that had `lengths` tokens when it was read.
    """
    dim = int(model.head_dim * model.rotary_fraction)
    if local and model.local_rotary_base is not None:
        return [model.local_rotary_base ** (-i / dim) for i in range(0, dim, 2)], 1
    turns = [model.rotary_base ** (-i / dim) for i in range(0, dim, 2)]
    scaling = model.rotary_scaling
    match scaling:
        case None:
            return turns, 1
        case LinearScaling():
            return [turn / scaling.factor for turn in turns], 1
        case Llama3Scaling():
            return [_llama3(scaling, turn) for turn in turns], 1
        case YarnScaling():
            size = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
            return _yarn(scaling, turns, model.rotary_base, dim), size
        case DynamicScaling():
            assert lengths is not None
            return np.array([_dynamic(scaling, model.rotary_base, dim, n) for n in lengths]), 1
        case LongropeScaling():
            assert lengths is not None
            short, long, first = scaling.short_factors, scaling.long_factors, scaling.original_max_position
            factors = np.array([long if n > first else short for n in lengths])
            size = math.sqrt(1 + math.log(scaling.factor) / math.log(first))
            return np.array(turns) / factors, scaling.attention_factor or size
    raise ValueError(f"no frequencies for {scaling}")


def _dynamic(scaling: DynamicScaling, base: float, dim: int, length: int) -> list[float]:
    """The base grows with a length beyond the original one."""
    length = max(length, scaling.original_max_position)
    growth = scaling.factor * length / scaling.original_max_position - (scaling.factor - 1)
    base = base * growth ** (dim / (dim - 2))
    return [base ** (-i / dim) for i in range(0, dim, 2)]


def _llama3(scaling: Llama3Scaling, turn: float) -> float:
    """Scaling by wavelength: long waves are stretched, short ones kept, those between partly stretched."""
    wave, length = 2 * math.pi / turn, scaling.original_max_position
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if wave < length / high:
        return turn
    if wave > length / low:
        return turn / scaling.factor
    smooth = (length / wave - low) / (high - low)
    return (1 - smooth) * turn / scaling.factor + smooth * turn


def _yarn(scaling: YarnScaling, turns: Sequence[float], base: float, dim: int) -> list[float]:
    """Scaling along a ramp between the pairs that turn beta_fast and beta_slow times."""
    ends = []
    for beta in (scaling.beta_fast, scaling.beta_slow):
        once = scaling.original_max_position / (beta * 2 * math.pi)
        ends.append(dim * math.log(once) / (2 * math.log(base)))
    if scaling.truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    start, end = max(ends[0], 0), min(ends[1], dim - 1)
    if start == end:
        end += 0.001
    stretched = [min(max((i - start) / (end - start), 0), 1) for i in range(len(turns))]
    return [t / scaling.factor * s + t * (1 - s) for t, s in zip(turns, stretched, strict=True)]


def feed_forward(model: Model, y: np.ndarray, layer: Parameters) -> np.ndarray:
    """An activation of y [T, E] after a matrix, gated by another one in swiglu and geglu."""
    inputs = np.einsum("te,emf->tmf", y, layer["ffn_in"]) + layer.get("ffn_in_bias", 0)
    h = inputs[:, 0]
    if model.feed_forward == "swiglu":
        h = h / (1 + np.exp(-h))
    elif model.feed_forward == "exact_gelu":
        h = h / 2 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    else:  # gelu, geglu: its approximation by tanh
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    if model.feed_forward in ("swiglu", "geglu"):
        h = h * inputs[:, 1]
    return h @ layer["ffn_out"] + layer.get("ffn_out_bias", 0)
