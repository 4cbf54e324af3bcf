"""The rows of a latent cache on sizes: put together and taken apart, which costs nothing.

Part of `CostOps`, see `program.latent.LatentOps`. Knows nothing about memory or time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.cost.sized import Sized


class Rows:
    """Last dims: R is some other one and behind it P, the rotary part."""

    def join(self, first: Sized, rope: Sized) -> Sized:
        dim = first.sharding.dims[-1]
        sizes = {d: n for d, n in first.sizes.items() if d != dim}
        sizes["R"] = first.sizes[dim] + rope.sizes["P"]
        return replace(first, sharding=first.sharding.rename(dim, "R"), sizes=sizes)

    def halves(self, t: Sized, rope: int, first: str) -> tuple[Sized, Sized]:
        sizes = {d: n for d, n in t.sizes.items() if d != "R"}
        return (
            replace(t, sharding=t.sharding.rename("R", first), sizes={**sizes, first: t.sizes["R"] - rope}),
            replace(t, sharding=t.sharding.rename("R", "P"), sizes={**sizes, "P": rope}),
        )

    def one_query(self, t: Sized) -> bool:
        return bool(np.all(t.sizes["L"] == 1))
