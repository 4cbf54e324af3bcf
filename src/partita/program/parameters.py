"""The names and shapes of a Transformer's parameters, unpadded and unsharded.

One list for everyone who makes, reads or shards parameters. Knows nothing about where their values come
from, how they are split or which numbers hold them.

Letters: V vocabulary, E d_model, F d_ff, K key/value heads, G query heads that share one of them
(query head h = k G + g), D head dim, M input matrices of the feed-forward block, N vectors of one norm,
S positions. Of latent attention: Q and C compressed query and key/value, P the rotary part of a head and D
the rest, R = C + P what is cached, U a head's value.
"""

from __future__ import annotations

from partita.specs.model import Model

Shape = tuple[int, ...]

CHANNELS = {
    "embed": "V",
    "unembed": "V",
    "q": "KGD",
    "kv": "MKD",
    "o": "E",
    "ffn_in": "MF",
    "ffn_out": "E",
}
"""The output channels of every matrix that int8 weights quantise: each has one scale, beside the matrix as
the parameter `{name}_scale` of these dims. All other parameters stay in a floating-point format."""


def parameter_shapes(model: Model) -> dict[str, Shape]:
    """Parameters outside the blocks: `embed` and `unembed` [V, E], `positions` [S, E], `final_norm` [N, E].

    `unembed` is absent where the embedding is tied, `positions` where they are not learned, `final_norm`
    where norms hold no parameters.
    """
    shapes: dict[str, Shape] = {"embed": (model.vocabulary, model.d_model)}
    if model.positions == "learned":
        shapes["positions"] = (model.max_context or 0, model.d_model)
    if model.norm_vectors:
        shapes["final_norm"] = (model.norm_vectors, model.d_model)
    if not model.tied_embedding:
        shapes["unembed"] = (model.vocabulary, model.d_model)
    return shapes


def layer_parameter_shapes(model: Model) -> dict[str, Shape]:
    """Parameters of one block, by their names without the `layers.{i}.` in front.

    `norm` [N, E] comes before attention (in a parallel block it may be the only one), `ffn_norm` [N, E]
    before the feed-forward, `post_norm` and `ffn_post_norm` [N, E] behind either; scale first, then
    LayerNorm's bias. `q` [E, K, G, D]; `kv` [E, 2, K, D], key then value; `o` [K, G, D, E]; `ffn_in`
    [E, M, F], where it is gated the gate then the matrix it gates; `ffn_out` [F, E]. A bias has the name and
    the outputs of its matrix. `q_norm` and `k_norm` [N, D] are one for all heads. Rotary pairs are
    (d, d + D/2).
    """
    e, f, n = model.d_model, model.d_ff, model.norm_vectors
    k, g, d = model.kv_heads, model.group, model.head_dim
    shapes = dict.fromkeys(_norms(model), (n, e)) if n else {}
    shapes |= _attention(model) if model.latent is None else _latent(model)
    if n and model.qk_norm:
        shapes |= {"q_norm": (n, d), "k_norm": (n, d)}
    if model.qkv_bias and model.latent is None:
        shapes |= {"q_bias": (k, g, d), "kv_bias": (2, k, d)}
    if model.output_bias:
        shapes["o_bias"] = (e,)
    shapes |= {"ffn_in": (e, model.ffn_inputs, f), "ffn_out": (f, e)}
    if model.ffn_bias:
        shapes |= {"ffn_in_bias": (model.ffn_inputs, f), "ffn_out_bias": (e,)}
    return shapes


def _norms(model: Model) -> tuple[str, ...]:
    """Names of the norms of d_model numbers in one block, `model.layer_norms` of them."""
    if model.block == "parallel":
        return ("norm", "ffn_norm") if model.separate_norms else ("norm",)
    return ("norm", "ffn_norm", "post_norm", "ffn_post_norm") if model.post_norms else ("norm", "ffn_norm")


def _attention(model: Model) -> dict[str, Shape]:
    e, k, g, d = model.d_model, model.kv_heads, model.group, model.head_dim
    return {"q": (e, k, g, d), "kv": (e, 2, k, d), "o": (k, g, d, e)}


def _latent(model: Model) -> dict[str, Shape]:
    """Matrices of latent attention (DeepSeek-V2, arXiv 2405.04434, equations 9 to 19) and its norms.

    `q_down` [E, Q], `q_up` [Q, K, G, D] and `q_rope` [Q, K, G, P]; where queries are not compressed these
    last two are `q` [E, K, G, D] and `q_rope` [E, K, G, P]. `kv_down` [E, R], the compressed part first;
    `k_up` [K, G, D, C]; `v_up` [C, K, G, U]; `o` [K, G, U, E].
    """
    latent = model.latent
    assert latent is not None
    e, k, g, n = model.d_model, model.kv_heads, model.group, model.norm_vectors
    nope, rope, value = latent.nope_dim, latent.rope_dim, latent.value_dim
    shapes: dict[str, Shape] = {}
    if latent.query_rank is None:
        shapes |= {"q": (e, k, g, nope), "q_rope": (e, k, g, rope)}
    else:
        rank = latent.query_rank
        shapes |= {"q_down": (e, rank), "q_up": (rank, k, g, nope), "q_rope": (rank, k, g, rope)}
        if n:
            shapes["q_down_norm"] = (n, rank)
    if n:
        shapes["kv_down_norm"] = (n, latent.kv_rank)
    return shapes | {
        "kv_down": (e, latent.cached),
        "k_up": (k, g, nope, latent.kv_rank),
        "v_up": (latent.kv_rank, k, g, value),
        "o": (k, g, value, e),
    }


def scale_name(name: str) -> str:
    """Of the scale that belongs to a matrix in int8."""
    return f"{name}_scale"


def all_parameter_shapes(model: Model) -> dict[str, Shape]:
    """Every parameter by its full name, those of block i as `layers.{i}.{name}`."""
    block = layer_parameter_shapes(model)
    return parameter_shapes(model) | {
        f"layers.{i}.{name}": shape for i in range(model.layers) for name, shape in block.items()
    }
