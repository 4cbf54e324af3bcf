"""What a Transformer is: its sizes and the few choices that change its program.

Knows nothing about chips, layouts or files; `hugging_face.py` and `checkpoints/` read files into it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]


class Model(BaseModel):
    """A decoder-only Transformer. Names in brackets are the dims of the sharding notation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    layers: Count
    d_model: Count  # [E]
    d_ff: Count  # [F]
    heads: Count  # query heads [H = K G]
    kv_heads: Count  # key/value heads [K]
    head_dim: Count  # [D]
    vocabulary: Count  # [V]
    block: Literal["serial", "parallel"] = "serial"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-6
    norm_parameters: bool = True
    """Whether norms hold learned parameters of their own; False where they are folded into the weights."""
    feed_forward: Literal["swiglu", "gelu"] = "swiglu"
    positions: Literal["rotary", "none"] = "rotary"
    rotary_base: Annotated[float, Field(gt=0)] = 10_000.0
    tied_embedding: bool = True
    max_context: Count | None = None
    """Longest context the model was trained for, in tokens; None where the source does not say."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even for rotary positions")
        return self

    @property
    def group(self) -> int:
        """Query heads that share one key/value head [G]."""
        return self.heads // self.kv_heads

    @property
    def ffn_inputs(self) -> int:
        """Input matrices of the feed-forward block [M]: 2 for SwiGLU (gate and up), 1 for GELU."""
        return 2 if self.feed_forward == "swiglu" else 1

    @property
    def norm_vectors(self) -> int:
        """Learned vectors of one norm: scale, and for LayerNorm a bias; 0 where there are none."""
        return (2 if self.norm == "layernorm" else 1) if self.norm_parameters else 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block; Pope et al. 2022: 2EHD + 2EKD + (1 + M)EF, and its norms."""
        attention = 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)
        ffn = (1 + self.ffn_inputs) * self.d_model * self.d_ff
        norms = self.norm_vectors * self.d_model * (1 if self.block == "parallel" else 2)
        return attention + ffn + norms

    @property
    def parameters(self) -> int:
        """All parameters, a tied embedding counted once."""
        tables = self.vocabulary * self.d_model * (1 if self.tied_embedding else 2)
        return self.layers * self.layer_parameters + tables + self.norm_vectors * self.d_model

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers: 2 x layers x K x D."""
        return 2 * self.layers * self.kv_heads * self.head_dim
