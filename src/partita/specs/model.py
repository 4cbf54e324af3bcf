"""What a Transformer is: its sizes and the choices that change its program, its parameters or its cache.

`hugging_face/` and `checkpoints/` read files into it. It describes more than the engine runs yet:
`beyond_engine` names what can only be planned for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from partita.specs.parameters import layer_count, total_count

Count = Annotated[int, Field(ge=1)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Latent(BaseModel):
    """The sizes of multi-head latent attention, which compresses keys and values to one vector that all heads
    share (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_rank: Count
    """Numbers of the compressed keys and values of one token."""
    query_rank: Count | None = None
    """Numbers of a compressed query; None where queries are projected directly."""
    nope_dim: Count
    """Part of a head's query and key without positions."""
    rope_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Part of them with rotary positions; its key is one for all heads."""
    value_dim: Count
    """Size of a head's value."""

    @property
    def head_dim(self) -> int:
        """Size of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers one layer caches for one token: the compressed vector and the shared rotary key."""
        return self.kv_rank + self.rope_dim


Stretch = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class _Scaling(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LinearScaling(_Scaling):
    """Every frequency is divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    kind: Literal["linear"] = "linear"
    factor: Stretch


class Llama3Scaling(_Scaling):
    """Low frequencies are divided by `factor`, high ones kept, those between blended (Llama 3, arXiv
    2407.21783). How often a frequency turns in `original_max_position` tokens decides: at most
    `low_freq_factor` times is low, at least `high_freq_factor` times is high."""

    kind: Literal["llama3"] = "llama3"
    factor: Stretch
    low_freq_factor: Factor
    high_freq_factor: Factor
    original_max_position: Count

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Llama3Scaling:
        if self.low_freq_factor >= self.high_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"low_freq_factor ({low}) must be below high_freq_factor ({high})")
        return self


class YarnScaling(_Scaling):
    """Like `Llama3Scaling`, but blended over the numbers of a head (YaRN, arXiv 2309.00071)."""

    kind: Literal["yarn"] = "yarn"
    factor: Stretch
    original_max_position: Count
    beta_fast: Factor = 32.0
    """Turns in `original_max_position` tokens from which on a frequency is kept."""
    beta_slow: Factor = 1.0
    """Turns up to which it is divided by `factor`."""
    truncate: bool = True
    """Whether the ends of the blend are rounded outwards to whole pairs."""
    attention_factor: Factor | None = None
    """What sines and cosines are multiplied by; None for 0.1 ln(factor) + 1."""


class DynamicScaling(_Scaling):
    """The base grows with the sequence, once it is longer than `original_max_position` (dynamic NTK,
    https://arxiv.org/abs/2309.00071, appendix B.2); every token turns as its sequence's length has it when
    the token is read."""

    kind: Literal["dynamic"] = "dynamic"
    factor: Stretch
    original_max_position: Count


class LongropeScaling(_Scaling):
    """Every frequency is divided by a number of its own: by one of `short_factors` in a sequence of up to
    `original_max_position` tokens, else by one of `long_factors` (LongRoPE, arXiv 2402.13753); every token
    turns as its sequence's length has it when the token is read."""

    kind: Literal["longrope"] = "longrope"
    short_factors: tuple[Factor, ...]
    long_factors: tuple[Factor, ...]
    original_max_position: Annotated[int, Field(ge=2)]
    factor: Stretch
    attention_factor: Factor | None = None
    """What sines and cosines are multiplied by; None for sqrt(1 + ln(factor) / ln(original_max_position))."""


class OtherScaling(_Scaling):
    """A kind that is known by its name alone: enough for planning, not for running."""

    kind: Literal["other"] = "other"
    name: str


def _named(value: Any) -> Any:
    """A bare name, as files of earlier versions have it."""
    return {"kind": "other", "name": value} if isinstance(value, str) else value


RotaryScaling = Annotated[
    LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongropeScaling | OtherScaling,
    Field(discriminator="kind"),
    BeforeValidator(_named),
]
"""How rotary positions are stretched beyond the length a model was first trained for; what the numbers do to
frequencies is in `program/positions.py`."""


class Model(BaseModel, frozen=True, extra="forbid"):
    """A decoder-only Transformer. Names in brackets are the dims of the sharding notation."""

    name: str
    layers: Annotated[int, Field(ge=1, le=10_000)]
    d_model: Count  # [E]
    d_ff: Count  # [F]
    heads: Count  # query heads [H = K G]
    kv_heads: Count  # key/value heads [K]
    head_dim: Count  # [D]
    vocabulary: Count  # [V]
    block: Literal["serial", "parallel"] = "serial"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_epsilon: Factor = 1e-6
    norm_parameters: bool = True
    """Whether norms hold learned parameters of their own; False where they are folded into the weights."""
    feed_forward: Literal["swiglu", "geglu", "gelu", "exact_gelu"] = "swiglu"
    """swiglu and geglu are gated; exact_gelu has the error function where the others have tanh."""
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    """learned: a table of `max_context` rows is added to the embedding. alibi: a score falls with the
    distance between its two tokens, by a slope of each head's own (Press et al. 2022, arXiv 2108.12409)."""
    alibi_max_bias: Factor = 8.0
    """The slopes of n heads, where n is a power of 2, are 2^(-i alibi_max_bias / n) for i from 1 to n."""
    alibi_scale: Factor = 1.0
    """What the slopes are multiplied by."""
    rotary_base: Factor = 10_000.0
    tied_embedding: bool = True
    max_context: Count | None = None
    """Longest context the model was trained for, in tokens; None where the source does not say."""

    window: Count | None = None
    """Tokens a local layer attends to, its own included: token t sees t - window + 1 to t. None where every
    layer attends to all."""
    global_period: Count | None = None
    """With a window: every n-th layer is global, the others local."""
    global_at: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """With a window, in place of a period: the numbers of the global layers, from 0, in order. With neither
    every layer is local."""
    latent: Latent | None = None
    """Multi-head latent attention: keys and values are cached as one compressed vector."""

    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    ffn_bias: bool = False
    qk_norm: bool = False
    """Whether each head's queries and keys pass a norm of the kind and epsilon of all norms, before they are
    turned (two vectors of head_dim for each layer)."""
    post_norms: bool = False
    """Whether a serial block also norms what attention and feed-forward put out: four norms a layer."""
    separate_norms: bool = False
    """Whether a parallel block has one norm for attention and another for its feed-forward."""

    rotary_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of a head that rotary positions turn, its first `rotary_dim` numbers."""
    rotary_scaling: RotaryScaling | None = None
    """How frequencies are stretched beyond the first training length."""
    rotary_pairs: Literal["halves", "interleaved"] = "halves"
    """Which numbers of the part turn together: d and d + rotary_dim/2, or neighbours."""
    local_rotary_base: Factor | None = None
    """Base of the local layers, which then are not scaled; None where they turn as the global ones do."""
    attention_softcap: Factor | None = None
    """A score s becomes c tanh(s / c), before the mask."""
    logit_softcap: Factor | None = None
    attention_scale: Factor | None = None
    """What scores are multiplied by, where that is not head_dim**-0.5; before their softcap."""
    embedding_scale: Factor | None = None
    """What embeddings are multiplied by; in bf16 it is rounded to bf16 first."""
    residual_scale: Factor | None = None
    """What each half of a block is multiplied by before it joins the residual."""
    logit_scale: Factor | None = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> Model:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.latent is not None:
            if self.kv_heads != self.heads:
                raise ValueError(
                    f"latent attention needs kv_heads ({self.kv_heads}) equal to heads ({self.heads})"
                )
            if self.head_dim != self.latent.head_dim:
                raise ValueError(f"head_dim ({self.head_dim}) must be nope_dim + rope_dim of latent")
        elif self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even for rotary positions")
        if self.positions == "rotary" and (self.rotary_dim < 2 or self.rotary_dim % 2):
            part = f"rotary_fraction ({self.rotary_fraction})"
            raise ValueError(f"{part} of a head must be an even number of at least 2, not {self.rotary_dim}")
        return self

    @model_validator(mode="after")
    def _choices_fit(self) -> Model:
        if self.window is None and (self.global_period is not None or self.global_at is not None):
            name = "global_at" if self.global_period is None else "global_period"
            raise ValueError(f"{name} is for a model with a window")
        if self.global_at is not None:
            if self.global_period is not None:
                raise ValueError("global_period and global_at say the same; give one of them")
            if [i for i in range(self.layers) if i in self.global_at] != [*self.global_at]:
                numbers = f"numbers from 0 to {self.layers - 1}, each once and in order"
                raise ValueError(f"global_at must be {numbers}")
        if self.positions == "learned" and self.max_context is None:
            raise ValueError("learned positions need max_context, the rows of their table")
        if self.block == "parallel" and self.post_norms:
            raise ValueError("post_norms are for a serial block")
        if self.block == "serial" and self.separate_norms:
            raise ValueError("separate_norms are for a parallel block")
        return self

    @model_validator(mode="after")
    def _scaling_fits(self) -> Model:
        scaling, pairs = self.rotary_scaling, self.rotary_dim // 2
        if isinstance(scaling, YarnScaling) and self.rotary_base <= 1:
            raise ValueError(f"rotary_base ({self.rotary_base}) must be above 1 for yarn")
        if isinstance(scaling, DynamicScaling) and pairs < 2:
            raise ValueError("dynamic scaling needs heads of which at least 4 numbers turn")
        if isinstance(scaling, LongropeScaling):
            for name in ("short_factors", "long_factors"):
                if len(getattr(scaling, name)) != pairs:
                    raise ValueError(f"{name} of longrope must be {pairs}, one for each pair of a head")
        return self

    @property
    def group(self) -> int:
        """Query heads that share one key/value head [G]."""
        return self.heads // self.kv_heads

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that rotary positions turn."""
        whole = self.head_dim if self.latent is None else self.latent.rope_dim
        return int(whole * self.rotary_fraction + 1e-6)  # a fraction such as 30 / 44 is rounded

    @property
    def global_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.global_before(self.layers)

    def global_before(self, layer: int) -> int:
        """Those of the first so many layers that attend to the whole context."""
        if self.window is None:
            return layer
        if self.global_at is not None:
            return sum(number < layer for number in self.global_at)
        return layer // self.global_period if self.global_period else 0

    def is_local(self, layer: int) -> bool:
        """Whether a layer, counted from 0, attends to the last `window` tokens only."""
        if self.window is None:
            return False
        if self.global_at is not None:
            return layer not in self.global_at
        return self.global_period is None or (layer + 1) % self.global_period != 0

    @property
    def local_layers(self) -> int:
        """Layers that attend to the last `window` tokens only."""
        return self.layers - self.global_layers

    @property
    def ffn_inputs(self) -> int:
        """Input matrices of the feed-forward block [M]: 2 where it is gated (gate and up), 1 where not."""
        return 2 if self.feed_forward in ("swiglu", "geglu") else 1

    @property
    def norm_vectors(self) -> int:
        """Learned vectors of one norm: scale, and for LayerNorm a bias; 0 where there are none."""
        return (2 if self.norm == "layernorm" else 1) if self.norm_parameters else 0

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention, its norms of d_model numbers apart: 2EHD + 2EKD where nothing
        is added or compressed (Pope et al. 2022, arXiv 2211.05102)."""
        return layer_count(self, "attention")

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block: attention, feed-forward, biases and norms."""
        return layer_count(self)

    @property
    def parameters(self) -> int:
        """All parameters, a tied embedding counted once."""
        return total_count(self)

    @property
    def kv_elements_per_token_layer(self) -> int:
        """Numbers one layer caches for one token: 2 x K x D, or the compressed vector of a latent cache."""
        return 2 * self.kv_heads * self.head_dim if self.latent is None else self.latent.cached

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers, while it is inside every window."""
        return self.layers * self.kv_elements_per_token_layer

    def kv_elements(self, context: int) -> int:
        """Numbers the KV cache holds for one sequence of `context` tokens; local layers keep their window."""
        local = context if self.window is None else min(context, self.window)
        return self.kv_elements_per_token_layer * (self.global_layers * context + self.local_layers * local)

    @property
    def beyond_engine(self) -> tuple[str, ...]:
        """The features, by name, that the engine does not run yet; empty where it runs the model."""
        features = {"latent attention": self.latent is not None}
        if isinstance(self.rotary_scaling, OtherScaling):
            features[f"{self.rotary_scaling.name} rotary scaling"] = True
        return tuple(name for name, present in features.items() if present)
