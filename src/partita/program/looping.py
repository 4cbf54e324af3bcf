"""Which collective next to an einsum a loop can take apart with it: the same for both interpreters.

Structural, as `sharding.reshard` is: it sees names, never sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.sharding.interleave import INTERLEAVED
from partita.sharding.reshard import Step, reshard
from partita.sharding.spec import Sharding, parse

_AROUND = ("layer", "global", "local")
"""Scopes that an operation is not named by: it is switched alike in all layers."""


def name_of(scopes: Sequence[str]) -> str:
    """What switches call an operation inside these scopes, e.g. "ffn/out"."""
    return "/".join(scope for scope in scopes if scope not in _AROUND)


def gather_step(source: Sharding, gathered: str, texts: Sequence[str]) -> Step | None:
    """The all-gather that ends the way of the first operand of these einsums to `gathered`, if one does and
    they all sum over what it gathers."""
    steps = reshard(source, parse(gathered))
    if not texts or not steps or steps[-1].kind != "all-gather":
        return None
    dim = steps[-1].dim
    return None if dim == INTERLEAVED or any(dim in text.split("->")[1] for text in texts) else steps[-1]


def scatter_step(product: Sharding, to: str) -> Step | None:
    """The reduce-scatter that an einsum's product starts its way to `to` with, if it does with one."""
    steps = reshard(product, parse(to))
    if not steps or steps[0].kind != "reduce-scatter" or steps[0].dim == INTERLEAVED:
        return None
    return steps[0]
