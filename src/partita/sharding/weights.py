"""How every parameter of a model is split over the groups of axes that a storage names.

Matrices are split on both sides. What is small and needed whole stays whole on every chip: norms, biases of
the residual, the table of learned positions. Knows no sizes, and nothing about what a phase does with them.
"""

from __future__ import annotations

from partita.specs.model import Model


def weight_shardings(model: Model, e: str, f: str, fg: str, fk: str) -> dict[str, str]:
    """Sharding by name; those of a layer are stacked over layers in front.

    e: axes on E; f: on F and V; fg and fk: those of f that split query groups and KV heads.
    """
    found = {"embed": f"V_{f} E_{e}", "ffn_in": f"E_{e} M F_{f}", "ffn_out": f"F_{f} E_{e}"}
    found |= _attention(e, fg, fk) if model.latent is None else _latent(model, e, fg, fk)
    if not model.tied_embedding:
        found["unembed"] = found["embed"]
    if model.positions == "learned":
        found["positions"] = "S E"
    if model.norm_vectors:
        found |= dict.fromkeys(("norm", "final_norm"), "M E")
        if model.block == "serial" or model.separate_norms:
            found["ffn_norm"] = "M E"
        if model.post_norms:
            found |= dict.fromkeys(("post_norm", "ffn_post_norm"), "M E")
        if model.qk_norm:
            found |= dict.fromkeys(("q_norm", "k_norm"), "M D")
    if model.qkv_bias and model.latent is None:
        found |= {"q_bias": f"K_{fk} G_{fg} D", "kv_bias": f"M K_{fk} D"}
    if model.output_bias:
        found["o_bias"] = "E"
    if model.ffn_bias:
        found |= {"ffn_in_bias": f"M F_{f}", "ffn_out_bias": "E"}
    return found


def _attention(e: str, fg: str, fk: str) -> dict[str, str]:
    """Keys and values are projected from an E split over fg too: no weight of a KV head is replicated."""
    return {"q": f"E_{e} K_{fk} G_{fg} D", "kv": f"E_{e}{fg} M K_{fk} D", "o": f"K_{fk} G_{fg} D E_{e}"}


def _latent(model: Model, e: str, fg: str, fk: str) -> dict[str, str]:
    """What is projected down has no heads to split, so its E is split over all axes; what is projected up has
    the compressed query, or the part of a head that is multiplied away, in the place of E."""
    found = {
        "kv_down": f"E_{e}{fg}{fk} R",
        "k_up": f"K_{fk} G_{fg} D_{e} C",
        "v_up": f"C_{e} K_{fk} G_{fg} U",
        "o": f"K_{fk} G_{fg} U E_{e}",
    }
    if model.norm_vectors:
        found["kv_down_norm"] = "M C"
    if model.latent is None or model.latent.query_rank is None:
        return found | {"q": f"E_{e} K_{fk} G_{fg} D", "q_rope": f"E_{e} K_{fk} G_{fg} P"}
    if model.norm_vectors:
        found["q_down_norm"] = "M Q"
    return found | {
        "q_down": f"E_{e}{fg}{fk} Q",
        "q_up": f"Q_{e} K_{fk} G_{fg} D",
        "q_rope": f"Q_{e} K_{fk} G_{fg} P",
    }
