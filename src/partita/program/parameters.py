"""The names and shapes of a Transformer's parameters, unpadded and unsharded.

One list for everyone who makes, reads or shards parameters. Knows nothing about where their values come
from, how they are split or which numbers hold them.

Letters: V vocabulary, E d_model, F d_ff, K key/value heads, G query heads that share one of them
(query head h = k G + g), D head dim, M input matrices of the feed-forward block, N vectors of one norm.
"""

from __future__ import annotations

from partita.specs.model import Model

Shape = tuple[int, ...]


def parameter_shapes(model: Model) -> dict[str, Shape]:
    """Parameters outside the blocks: `embed` and `unembed` [V, E], `final_norm` [N, E].

    `unembed` is absent where the embedding is tied, `final_norm` where norms hold no parameters.
    """
    shapes: dict[str, Shape] = {"embed": (model.vocabulary, model.d_model)}
    if model.norm_vectors:
        shapes["final_norm"] = (model.norm_vectors, model.d_model)
    if not model.tied_embedding:
        shapes["unembed"] = (model.vocabulary, model.d_model)
    return shapes


def layer_parameter_shapes(model: Model) -> dict[str, Shape]:
    """Parameters of one block, by their names without the `layers.{i}.` in front.

    `norm` [N, E] comes before attention (in a parallel block it is the only one), `ffn_norm` [N, E] before
    the feed-forward of a serial block; scale first, then LayerNorm's bias. `q` [E, K, G, D];
    `kv` [E, 2, K, D], key then value; `o` [K, G, D, E]; `ffn_in` [E, M, F], for SwiGLU the gate then the
    matrix it gates; `ffn_out` [F, E]. Rotary pairs are (d, d + D/2).
    """
    e, f, d = model.d_model, model.d_ff, model.head_dim
    k, g = model.kv_heads, model.group
    shapes: dict[str, Shape] = {}
    if model.norm_vectors:
        shapes["norm"] = (model.norm_vectors, e)
        if model.block == "serial":
            shapes["ffn_norm"] = (model.norm_vectors, e)
    return shapes | {
        "q": (e, k, g, d),
        "kv": (e, 2, k, d),
        "o": (k, g, d, e),
        "ffn_in": (e, model.ffn_inputs, f),
        "ffn_out": (f, e),
    }


def all_parameter_shapes(model: Model) -> dict[str, Shape]:
    """Every parameter by its full name, those of block i as `layers.{i}.{name}`."""
    block = layer_parameter_shapes(model)
    return parameter_shapes(model) | {
        f"layers.{i}.{name}": shape for i in range(model.layers) for name, shape in block.items()
    }
