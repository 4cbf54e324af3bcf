"""The one table of a Transformer's parameters: dims and sizes, how each dim is stored, int8 channels.

`parameter_table` has a row for every parameter of a model, one for those that every block has. Shapes,
counts, shardings, scales and number formats derive from the rows, so that a new parameter or dim is added
here and nowhere else.

Dims: V vocabulary, E d_model, F d_ff, K key/value heads, G query heads that share one of them (query head
h = k G + g), D head dim, S positions, M what lies side by side in one parameter: key and value, a gate and
the matrix it gates, a norm's scale and LayerNorm's bias. Rotary pairs are (d, d + D/2). Of latent attention:
Q and C the compressed query and key/value, P the rotary part of a head and D the rest, R = C + P what is
cached (C first), U a head's value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from partita.specs.formats import Formats

if TYPE_CHECKING:  # a model counts its parameters with this table
    from partita.specs.model import Model

Shape = tuple[int, ...]
Part = Literal["embedding", "unembedding", "norms", "attention", "feed_forward"]
Role = Literal["matrix", "positions", "norm", "bias"]
_BLOCK: tuple[Part, ...] = ("norms", "attention", "feed_forward")


@dataclass(frozen=True)
class Parameter:
    """One row of the table: an array, one for each block unless it belongs to an end of the model."""

    name: str
    """In the table the last part of the full name: "q" of "layers.3.q"."""
    part: Part
    """What it belongs to; norms are those of d_model numbers."""
    role: Role
    stored: str
    """The dims in order, each with the groups of a storage's axes that split it: "E_{e}{fg} M K_{fk} D"."""
    shape: Shape
    """As the model has it, without padding."""
    own: str = ""
    """The dims whose size is this parameter's own; the others are the model's, which layouts pad."""
    channels: str = ""
    """The output channels of a matrix that int8 weights quantise: each has one scale."""

    @cached_property
    def dims(self) -> str:
        """The dims in order: "EMKD"."""
        return "".join(letter for letter in self.stored if letter.isupper())

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each dim in the model."""
        return dict(zip(self.dims, self.shape, strict=True))

    @cached_property
    def own_sizes(self) -> dict[str, int]:
        """The size of each dim that is never padded."""
        return {dim: self.sizes[dim] for dim in self.own}

    @cached_property
    def count(self) -> int:
        """Numbers in one such array."""
        return math.prod(self.shape)

    @property
    def in_block(self) -> bool:
        """Whether every block has such a parameter."""
        return self.part in _BLOCK

    @property
    def quantisable(self) -> bool:
        """Whether it is in int8 where the weights are."""
        return bool(self.channels)

    @property
    def summed_axes(self) -> Shape:
        """The axes that one scale covers: those that are no channels."""
        return tuple(axis for axis, dim in enumerate(self.dims) if dim not in self.channels)

    @property
    def scale_shape(self) -> Shape:
        """The shape of the scales of a quantised matrix, whose dims are its channels."""
        return tuple(self.sizes[dim] for dim in self.channels)

    def sharding(self, e: str, f: str, fg: str, fk: str) -> str:
        """How the parameter is split, given the axes that a storage has on E, on F and V, and, of these, on
        query groups and on KV heads."""
        return self.stored.format(e=e, f=f, fg=fg, fk=fk)

    def padded_sizes(self, padded: Mapping[str, Any]) -> dict[str, Any]:
        """The size of each dim as stored, given the padded sizes of a model's dims."""
        return {dim: size if dim in self.own else padded[dim] for dim, size in self.sizes.items()}

    def number_format(self, formats: Formats) -> str:
        """Norms and biases are kept in float32, matrices in the format of the weights; learned positions are
        no matrix, and in the format of the activations where the weights are int8."""
        if self.role in ("norm", "bias"):
            return "f32"
        if self.role == "positions" and formats.weights == "int8":
            return formats.activations
        return formats.weights


def scale_name(name: str) -> str:
    """The name of the scales of a matrix in int8."""
    return f"{name}_scale"


def dim_sizes(model: Model) -> dict[str, int]:
    """The size of every dim that several parameters of a model share, without padding."""
    sizes = {"E": model.d_model, "F": model.d_ff, "V": model.vocabulary}
    sizes |= {"K": model.kv_heads, "G": model.group, "D": model.head_dim}
    if model.latent is not None:
        latent = model.latent
        sizes |= {"Q": latent.query_rank or 1, "C": latent.kv_rank, "R": latent.cached}
        sizes |= {"D": latent.nope_dim, "P": latent.rope_dim, "U": latent.value_dim}
    return sizes


@lru_cache(maxsize=1024)
def parameter_table(model: Model) -> Mapping[str, Parameter]:
    """The rows of a model by name, in the order in which they are printed."""
    sizes = dim_sizes(model)

    def row(name: str, part: Part, role: Role, stored: str, channels: str = "", **own: int) -> Parameter:
        dims = [letter for letter in stored if letter.isupper()]
        shape = tuple({**sizes, **own}[dim] for dim in dims)
        return Parameter(name, part, role, stored, shape, "".join(own), channels)

    return MappingProxyType({each.name: each for each in _rows(model, row)})


def _rows(model: Model, row: Callable[..., Parameter]) -> Iterator[Parameter]:
    """Matrices are split on both sides. What is small and needed whole stays whole on every chip: norms,
    biases of the residual, the table of learned positions."""
    yield row("embed", "embedding", "matrix", "V_{f} E_{e}", "V")
    yield row("ffn_in", "feed_forward", "matrix", "E_{e} M F_{f}", "MF", M=model.ffn_inputs)
    yield row("ffn_out", "feed_forward", "matrix", "F_{f} E_{e}", "E")
    yield from _attention(row) if model.latent is None else _latent(model, row)
    if not model.tied_embedding:
        yield row("unembed", "unembedding", "matrix", "V_{f} E_{e}", "V")
    if model.positions == "learned":
        yield row("positions", "embedding", "positions", "S E", S=model.max_context or 0)
    yield from _norms(model, row)
    if model.qkv_bias and model.latent is None:
        yield row("q_bias", "attention", "bias", "K_{fk} G_{fg} D")
        yield row("kv_bias", "attention", "bias", "M K_{fk} D", M=2)
    if model.output_bias:
        yield row("o_bias", "attention", "bias", "E")
    if model.ffn_bias:
        yield row("ffn_in_bias", "feed_forward", "bias", "M F_{f}", M=model.ffn_inputs)
        yield row("ffn_out_bias", "feed_forward", "bias", "E")


def _attention(row: Callable[..., Parameter]) -> Iterator[Parameter]:
    """Keys and values are projected from an E split over fg too: no weight of a KV head is replicated."""
    yield row("q", "attention", "matrix", "E_{e} K_{fk} G_{fg} D", "KGD")
    yield row("kv", "attention", "matrix", "E_{e}{fg} M K_{fk} D", "MKD", M=2)
    yield row("o", "attention", "matrix", "K_{fk} G_{fg} D E_{e}", "E")


def _latent(model: Model, row: Callable[..., Parameter]) -> Iterator[Parameter]:
    """Latent attention (DeepSeek-V2, arXiv 2405.04434, equations 9 to 19) and the norms between its matrices.

    What is projected down has no heads to split, so its E is split over all axes; what is projected up has
    the compressed query, or the part of a head that is multiplied away, in the place of E.
    """
    compressed = model.latent is not None and model.latent.query_rank is not None
    yield row("kv_down", "attention", "matrix", "E_{e}{fg}{fk} R")
    yield row("k_up", "attention", "matrix", "K_{fk} G_{fg} D_{e} C")
    yield row("v_up", "attention", "matrix", "C_{e} K_{fk} G_{fg} U")
    yield row("o", "attention", "matrix", "K_{fk} G_{fg} U E_{e}", "E")
    if model.norm_vectors:
        yield row("kv_down_norm", "attention", "norm", "M C", M=model.norm_vectors)
    if not compressed:
        yield row("q", "attention", "matrix", "E_{e} K_{fk} G_{fg} D", "KGD")
        yield row("q_rope", "attention", "matrix", "E_{e} K_{fk} G_{fg} P")
        return
    if model.norm_vectors:
        yield row("q_down_norm", "attention", "norm", "M Q", M=model.norm_vectors)
    yield row("q_down", "attention", "matrix", "E_{e}{fg}{fk} Q")
    yield row("q_up", "attention", "matrix", "Q_{e} K_{fk} G_{fg} D")
    yield row("q_rope", "attention", "matrix", "Q_{e} K_{fk} G_{fg} P")


def _norms(model: Model, row: Callable[..., Parameter]) -> Iterator[Parameter]:
    """`norm` comes before attention (in a parallel block it may be the only one), `ffn_norm` before the
    feed-forward, `post_norm` and `ffn_post_norm` behind either; `q_norm` and `k_norm` serve all heads."""
    if not model.norm_vectors:
        return
    vectors = {"M": model.norm_vectors}
    yield row("norm", "norms", "norm", "M E", **vectors)
    yield row("final_norm", "unembedding", "norm", "M E", **vectors)
    if model.block == "serial" or model.separate_norms:
        yield row("ffn_norm", "norms", "norm", "M E", **vectors)
    if model.post_norms:
        yield row("post_norm", "norms", "norm", "M E", **vectors)
        yield row("ffn_post_norm", "norms", "norm", "M E", **vectors)
    if model.qk_norm:
        yield row("q_norm", "attention", "norm", "M D", **vectors, D=model.head_dim)
        yield row("k_norm", "attention", "norm", "M D", **vectors, D=model.head_dim)


@lru_cache(maxsize=64)
def all_parameters(model: Model) -> Mapping[str, Parameter]:
    """A row for every parameter by its full name, which the row has too, in the order in which checkpoints
    are read and written: those outside the blocks, then those of block i as `layers.{i}.{name}`."""
    rows = parameter_table(model).values()
    ends = [row for row in rows if not row.in_block]
    block = sorted((row for row in rows if row.in_block), key=lambda row: _BLOCK.index(row.part))
    found = {row.name: row for row in sorted(ends, key=lambda row: (row.part, row.name))}
    for i in range(model.layers):
        for row in block:
            name = f"layers.{i}.{row.name}"
            found[name] = replace(row, name=name)
    return MappingProxyType(found)


def layer_count(model: Model, part: Part | None = None) -> int:
    """Numbers in one block, or in one part of it."""
    rows = parameter_table(model).values()
    return sum(row.count for row in rows if row.in_block and part in (None, row.part))


def total_count(model: Model) -> int:
    """Numbers in the whole model, a tied embedding counted once."""
    ends = sum(row.count for row in parameter_table(model).values() if not row.in_block)
    return ends + model.layers * layer_count(model)
