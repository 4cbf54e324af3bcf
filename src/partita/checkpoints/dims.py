"""The dims of every parameter by letter, as `partita.program.parameters` explains them.

Knows no sizes and no file formats. Latent attention is not here: its checkpoints are not read yet.
"""

from __future__ import annotations

from partita.program.parameters import CHANNELS

DIMS = {
    **{"embed": "VE", "unembed": "VE", "positions": "SE"},
    **dict.fromkeys(("norm", "ffn_norm", "post_norm", "ffn_post_norm", "final_norm"), "NE"),
    **{"q": "EKGD", "kv": "EMKD", "o": "KGDE", "ffn_in": "EMF", "ffn_out": "FE"},
    **{"q_bias": "KGD", "kv_bias": "MKD", "o_bias": "E", "ffn_in_bias": "MF", "ffn_out_bias": "E"},
    **{"q_norm": "ND", "k_norm": "ND"},
}
"""By the last part of a parameter's name; M of kv and kv_bias is key, value."""


def kind(name: str) -> str:
    """The last part of a parameter's name: "q" of "layers.3.q"."""
    return name.rpartition(".")[2]


def is_quantisable(name: str) -> bool:
    """Whether int8 weights quantise this parameter."""
    return kind(name) in CHANNELS
