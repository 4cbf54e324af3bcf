"""Multi-head latent attention: keys and values compressed to one vector that all heads share.

Knows nothing about the rest of the model. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Rank = Annotated[int, Field(ge=1)]


class Latent(BaseModel):
    """The sizes of latent attention."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_rank: Rank
    """Numbers of the compressed keys and values of one token."""
    query_rank: Rank | None = None
    """Numbers of a compressed query; None where queries are projected directly."""
    nope_dim: Rank
    """Part of a head's query and key without positions."""
    rope_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Part of them with rotary positions; its key is one for all heads."""
    value_dim: Rank
    """Size of a head's value."""

    @property
    def head_dim(self) -> int:
        """Size of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers one layer caches for one token: the compressed vector and the shared rotary key."""
        return self.kv_rank + self.rope_dim
