"""Counts a traced program: walks its jaxpr, where collectives keep their axes and true dtypes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from partita.engine.cpu import parts_in
from partita.measure.counts import Counts, sent_bytes

_KINDS = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


def count_jaxpr(jaxpr: Any, sizes: Mapping[str, int]) -> Counts:
    """Collectives and dot FLOPs of one device in a (closed) jaxpr; a scan counts once per iteration.

    Raises ValueError for a `while` loop, whose length a trace does not hold, and for a branch.
    """
    counts = Counts()
    _walk(getattr(jaxpr, "jaxpr", jaxpr), 1, counts, sizes)
    return counts


def _walk(jaxpr: Any, times: int, counts: Counts, sizes: Mapping[str, int]) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in ("while", "cond"):
            raise ValueError(f"cannot count a program with {name!r}")
        if name in _KINDS:
            axes = eqn.params.get("axes") or eqn.params["axis_name"]
            axes = (axes,) if isinstance(axes, str) else axes
            chips = math.prod(sizes[axis] for axis in axes)
            for operand in eqn.invars:
                size = math.prod(operand.aval.shape) * operand.aval.dtype.itemsize
                counts.add(_KINDS[name], "".join(axes), sent_bytes(_KINDS[name], size, chips), times)
        elif name == "dot_general":
            counts.flops += times * _dot_flops(eqn)
        inner = times * (eqn.params["length"] if name == "scan" else 1)
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                _walk(getattr(value, "jaxpr", value), inner, counts, sizes)


def _dot_flops(eqn: Any) -> int:
    """Two FLOPs for every multiply-add: the output's elements times the contracted ones.

    A product whose activations are written as several numbers counts as the one product that it is.
    """
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval
    flops = 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left.shape[i] for i in contracted)
    return flops // parts_in(str(eqn.source_info.name_stack))
