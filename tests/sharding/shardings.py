"""Hypothesis strategies: shardings, and pairs of them that `reshard` accepts."""

from __future__ import annotations

from hypothesis import strategies as st

from partita.sharding import Sharding

NOWHERE, SUM = "-", "+"
"""Where an axis can be besides on a dim: it holds replicas, or terms still to be summed."""


@st.composite
def shardings(draw: st.DrawFn, dims: str, axes: str, partial_axes: str) -> Sharding:
    """Any sharding of `dims` over some of `axes`; those of `partial_axes` may be a partial sum."""
    order = draw(st.permutations(axes))
    home = {
        axis: draw(st.sampled_from(dims + NOWHERE + (SUM if axis in partial_axes else ""))) for axis in order
    }
    split = tuple("".join(axis for axis in order if home[axis] == dim) for dim in dims)
    return Sharding(dims, split, "".join(axis for axis in order if home[axis] == SUM))


@st.composite
def pairs(draw: st.DrawFn, axes: str = "xyzw") -> tuple[Sharding, Sharding]:
    """A source and a target over 3 or 4 dims; the target keeps at most the source's partial sums."""
    dims = draw(st.sampled_from(("BLE", "BLKD")))
    source = draw(shardings(dims, axes, axes))
    return source, draw(shardings(dims, axes, source.partial))
