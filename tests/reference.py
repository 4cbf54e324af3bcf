"""The Transformer once more, unsharded, in plain NumPy: what every other way of running it must equal.

Written from the equations and for reading; shares no code with the program under test, only the `Model`
that says what to run. One sequence at a time, every token at once, in float64.

Shapes: T tokens, E d_model, K key/value heads, G query heads to each, D head dim, F d_ff, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.specs.model import Model

Parameters = Mapping[str, np.ndarray]


def logits(model: Model, parameters: Parameters, tokens: Sequence[int]) -> np.ndarray:
    """Logits [T, V] after each of the tokens."""
    return _forward(model, parameters, tokens)[0]


def kv(model: Model, parameters: Parameters, tokens: Sequence[int]) -> np.ndarray:
    """What a cache holds after the tokens: [layers, T, 2, K, D], keys (turned by their position), values."""
    return _forward(model, parameters, tokens)[1]


def greedy(model: Model, parameters: Parameters, tokens: Sequence[int], steps: int) -> list[int]:
    """The `steps` tokens that follow, each the likeliest after all before it; no cache, no end token."""
    sequence = list(tokens)
    for _ in range(steps):
        sequence.append(int(logits(model, parameters, sequence)[-1].argmax()))
    return sequence[len(tokens) :]


def _forward(model: Model, parameters: Parameters, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    x = parameters["embed"][list(tokens)].astype(np.float64)  # [T, E]
    cache = []
    for i in range(model.layers):
        start = f"layers.{i}."
        layer = {
            name.removeprefix(start): value.astype(np.float64)
            for name, value in parameters.items()
            if name.startswith(start)
        }
        y = normalise(model, x, layer.get("norm"))
        attended, keys_and_values = attention(model, y, layer)
        if model.block == "parallel":
            x = x + attended + feed_forward(model, y, layer)
        else:
            x = x + attended
            x = x + feed_forward(model, normalise(model, x, layer.get("ffn_norm")), layer)
        cache.append(keys_and_values)
    x = normalise(model, x, parameters.get("final_norm"))
    table = parameters["embed" if model.tied_embedding else "unembed"]
    return x @ table.astype(np.float64).T, np.stack(cache)


def normalise(model: Model, x: np.ndarray, vectors: np.ndarray | None) -> np.ndarray:
    """RMSNorm or LayerNorm over E; `vectors` [N, E] are its scale and, for LayerNorm, its bias."""
    if model.norm == "layernorm":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + model.norm_epsilon)
    if vectors is None:
        return x
    x = x * vectors[0]
    return x + vectors[1] if model.norm == "layernorm" else x


def attention(model: Model, y: np.ndarray, layer: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Causal grouped-query attention of y [T, E]: its output [T, E], and keys and values [T, 2, K, D]."""
    query = np.einsum("te,ekgd->tkgd", y, layer["q"])
    key, value = np.einsum("te,eckd->ctkd", y, layer["kv"])
    if model.positions == "rotary":
        query, key = rotate(query, model.rotary_base), rotate(key, model.rotary_base)
    scores = np.einsum("tkgd,skd->kgts", query, key) / np.sqrt(model.head_dim)
    time = np.arange(len(y))
    scores = np.where(time[None, :] <= time[:, None], scores, -np.inf)  # a token sees itself and the past
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("kgts,skd->tkgd", weights, value)
    return np.einsum("tkgd,kgde->te", mixed, layer["o"]), np.stack([key, value], axis=1)


def rotate(x: np.ndarray, base: float) -> np.ndarray:
    """Turns each pair (d, d + D/2) of x [T, ..., D] by position * base^(-2d/D)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)  # [T, D/2]
    angles = angles.reshape(len(x), *[1] * (x.ndim - 2), half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def feed_forward(model: Model, y: np.ndarray, layer: Parameters) -> np.ndarray:
    """SwiGLU, or GELU in its tanh approximation, of y [T, E]."""
    inputs = np.einsum("te,emf->mtf", y, layer["ffn_in"])
    if model.feed_forward == "swiglu":
        hidden = inputs[0] / (1 + np.exp(-inputs[0])) * inputs[1]
    else:
        h = inputs[0]
        hidden = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return hidden @ layer["ffn_out"]
