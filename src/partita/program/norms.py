"""Pieces that several parts of the program are made of: norms, and the softmax over a split cache.

Knows nothing about blocks or layouts; a tensor's own sharding says all that is needed.
"""

from __future__ import annotations

from partita.program.ops import Ops, Seen, T
from partita.specs.model import Model


def normalise(ops: Ops[T], model: Model, x: T, parameters: T | None) -> T:
    """RMSNorm or LayerNorm over the last dim of x [B L ...]; only the moments are summed over chips."""
    return scale(ops, model, x, moments(ops, model, x), parameters)


def moments(ops: Ops[T], model: Model, x: T) -> T:
    """[B L M] of x [B L E_ef], summed over all of E."""
    found = ops.moments(x, model.norm)  # partial over ef
    return ops.to(found, str(found.sharding.summing("")))


def scale(ops: Ops[T], model: Model, x: T, moments: T, parameters: T | None) -> T:
    """x brought to unit moments, and scaled by `parameters` [M E], which every chip has whole."""
    if parameters is not None:
        dim = x.sharding.dims[-1]
        parameters = ops.to(parameters, f"M {dim}_{x.sharding[dim]}")
    return ops.normalise(x, moments, parameters, model)


def softmax(ops: Ops[T], scores: T, seen: Seen[T]) -> T:
    """Shares [B K L G S] of each cached position; where S is split, chips exchange two numbers a query."""
    if not scores.sharding["S"]:
        return ops.softmax(scores, seen)
    sums = ops.shard_sums(scores, seen)
    sums = ops.to(sums, str(sums.sharding.split("S", "")))
    return ops.softmax(scores, seen, sums)
