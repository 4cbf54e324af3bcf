"""Products of the program looped with the collectives next to them, where its switches say so.

A part of `JaxOps`: reads shardings, and hands a device's arrays to `looped.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from partita.engine.collective_matmul import Ring, gathered_products, scattered_product
from partita.engine.local import Local, Places
from partita.engine.matmul import product
from partita.program.ops import Product
from partita.program.options import RunOptions, gather_step, name_of, scatter_step
from partita.sharding.reshard import Step
from partita.sharding.spec import Sharding


class CollectiveMatmulOps(Places):
    """Einsums that pass a ring of devices."""

    activations: Any
    on_cpu: bool
    run_options: RunOptions
    _scopes: list[str]

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        with jax.named_scope(name):
            yield
        self._scopes.pop()

    def product(self, text: str, a: jax.Array, b: jax.Array) -> jax.Array:
        """float32, of this device's parts."""
        return product(text, a, b, self.activations, self.on_cpu)

    def gather_looped(self, y: Local, gathered: str, products: Sequence[Product[Local]]) -> Step | None:
        """The all-gather of y that is looped with `products`, where one is.

        An int8 weight whose scale is summed over is multiplied with the scaled y, which is not one for all.
        """
        step = gather_step(y.sharding, gathered, [p.text for p in products])
        if step is None or any(not scales_result(p.text, p.weight) for p in products):
            return None
        name = name_of([*self._scopes, products[0].scope])
        return step if self._loops(name, "gather", step) else None

    def gathered(
        self, y: Local, step: Step, products: Sequence[Product[Local]]
    ) -> tuple[jax.Array, list[jax.Array]]:
        """y after the step, and its products; y is as the step finds it."""
        others = [(p.text, p.weight.value) for p in products]
        two_way = self.run_options.way(name_of([*self._scopes, products[0].scope]), "gather") == "two-way"
        ring = Ring.over(step.axes, self.sizes)
        return gathered_products(
            y.value, y.sharding.dims, step.dim, others, ring, self.product, two_way=two_way
        )

    def scatter_looped(self, sharding: Sharding, to: str) -> Step | None:
        """The reduce-scatter of a product that is looped with it, where one is."""
        step = scatter_step(sharding, to)
        return step if step and self._loops(name_of(self._scopes), "scatter", step) else None

    def scattered(
        self,
        text: str,
        operands: tuple[jax.Array, jax.Array],
        step: Step,
        format: Any,
        times: jax.Array | None,
        plus: jax.Array | None,
    ) -> jax.Array:
        """The product after the step, in float32."""
        return scattered_product(
            text,
            *operands,
            step.dim,
            Ring.over(step.axes, self.sizes),
            self.product,
            two_way=self.run_options.way(name_of(self._scopes), "scatter") == "two-way",
            format=format,
            times=times,
            plus=plus,
        )

    def _loops(self, name: str, kind: str, step: Step) -> bool:
        return bool(self._split(step.axes)) and self.run_options.way(name, kind) != "none"


def scales_result(text: str, weight: Local) -> bool:
    """Whether the scale of the second operand, if it has one, scales the product's channels."""
    return weight.scale is None or set(weight.scale.sharding.dims) <= set(text.split("->")[1])
