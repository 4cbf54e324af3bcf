"""What generation launches for one step: the step itself, which ends with logits, and the draw of tokens.

To be counted, programs need shapes only (`Launch`), which also says what their compiled forms take of a
device's memory. To be timed, they run on weights that mean nothing (`Steps`): a time does not depend on the
values, so no checkpoint is needed. Knows nothing about predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.cost.step import StepShape
from partita.engine.cache import WHOLE
from partita.engine.engine import EngineOptions
from partita.engine.memory import AskedStep, Memory
from partita.engine.requests import IDLE, arrays
from partita.engine.steps import Programs
from partita.sharding.layout import Layout, Storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product
from partita.sharding.roles import Roles
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.profile import Phase

_VALUE = 0.01  # small, and no subnormal number


@dataclass(frozen=True)
class Launch:
    """A program and the shapes of what it is given."""

    run: Any
    arguments: tuple
    beside: int = 0
    """Bytes of each device that are held all the while, though the program is not given them."""

    def held_bytes(self, compiled: Any) -> int:
        """Bytes per device of the compiled program: arguments, results and what it needs beside, what is
        donated counted once, and what else is held meanwhile."""
        found = compiled.memory_analysis()
        return (
            found.argument_size_in_bytes
            + found.output_size_in_bytes
            + found.temp_size_in_bytes
            - found.alias_size_in_bytes
            + self.beside
        )


def prefill_launches(
    programs: Programs, layout: Layout, decode: Layout, batch: int, prompt: int
) -> tuple[Launch, ...]:
    """Prompts read in one step, and the first token of a slot of `decode`'s layout for each."""
    step = programs.prefill(layout), (programs.parameters(), ints(batch, prompt), ints(batch))
    return Launch(*step), first_draw(programs, layout, decode, batch, prompt)


def first_draw(
    programs: Programs, layout: Layout, decode: Layout, batch: int, prompt: int, queries: int = 1
) -> Launch:
    """The first token of every slot, from a step on a cache of `prompt` tokens in a prefill layout."""
    run = programs.draws.first(layout, decode, "greedy")
    arguments = (programs.last_logits(layout, batch), ints(batch), *_settings(batch))
    return Launch(run, arguments, _resident(programs, layout, batch, prompt, queries))


def decode_launches(programs: Programs, layout: Layout, batch: int, context: int) -> tuple[Launch, ...]:
    """A token for every sequence on a cache of `context` tokens each."""
    arguments = (programs.parameters(), programs.cache(layout, batch, context), ints(batch), ints(batch))
    draw = programs.draws.next(layout, "greedy")
    given = (programs.last_logits(layout, batch), *_settings(batch))
    return (
        Launch(programs.decode(layout), arguments),
        Launch(draw, given, _resident(programs, layout, batch, context)),
    )


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of whole numbers that every device has."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _settings(batch: int) -> tuple:
    """What a draw is given beside logits, of slots that need the likeliest token alone."""
    return arrays([IDLE] * batch), ints(batch), {}, None


def _resident(programs: Programs, layout: Layout, batch: int, context: int, queries: int = 1) -> int:
    """Bytes of weights and cache on each device."""
    leaves = jax.tree.leaves((programs.parameters(), programs.cache(layout, batch, context, queries)))
    return sum(math.prod(t.sharding.shard_shape(t.shape)) * t.dtype.itemsize for t in leaves)


# -- to be timed ----------------------------------------------------------------------------------------


class Steps:
    """A model's weights on a mesh, stored for layouts that store them alike, and steps on them."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        storage: Storage,
        formats: Formats,
        options: EngineOptions | None = None,
    ):
        options = options or EngineOptions()
        self.programs = Programs(model, mesh, storage, formats, options.devices, options.run_options)
        self._memory = Memory(self.programs, force=options.force, words=options.words)
        self._memory.check_load(None)
        self.parameters = {name: filled(target) for name, target in self.programs.parameters().items()}
        self._memory.placed()

    def ready(self, roles: Roles, phase: Phase, batch: int, tokens: int) -> Callable[[], Any]:
        """A compiled step: prompts of `tokens`, or one token each on a cache of `tokens`, its own
        included. Raises InputError (field "memory") where there is too little of it."""
        programs = self.programs
        size, mesh = programs.mesh.size, programs.mesh
        queries = tokens if phase == "prefill" else 1
        layout = resolve(roles, programs.storage, mesh, batch, queries)
        rows = ceil_to(batch, product(size, layout.batch_axes))
        shape = StepShape(rows, queries, None if phase == "prefill" else tokens)
        self._memory.check(AskedStep(layout, shape, "greedy"))
        if phase == "prefill":
            width = ceil_to(tokens, product(size, layout.query_axes))
            args = (self.parameters, self._ints(0, rows, width), self._ints(width, rows))
            compiled = _compiled(programs.prefill(layout), *args)
            first = programs.draws.first(layout, layout, "greedy")
            draw = self._draw(first, layout, rows, self._ints(0, rows))
            return lambda: draw(compiled(*args)[0])
        cache = jax.tree.map(filled, programs.cache(layout, rows, programs.divisible(tokens)))
        new, positions = self._ints(0, rows), self._ints(tokens - 1, rows)
        compiled = _compiled(programs.decode(layout), self.parameters, cache, new, positions)
        draw, kept = self._draw(programs.draws.next(layout, "greedy"), layout, rows), [cache]

        def step():
            logits, _, kept[0] = compiled(self.parameters, kept[0], new, positions)
            return draw(logits)

        return step

    def _draw(self, run: Any, layout: Layout, rows: int, *source: jax.Array) -> Callable[[jax.Array], Any]:
        """The compiled draw of the likeliest tokens from logits; all else it is given is made once."""
        settings = {name: self._whole(each) for name, each in arrays([IDLE] * rows).items()}
        given = (*source, settings, self._ints(0, rows), {}, None)
        compiled = _compiled(run, self.programs.last_logits(layout, rows), *given)
        return lambda logits: compiled(logits, *given).tokens

    def _ints(self, value: int, *shape: int) -> jax.Array:
        return self._whole(np.full(shape, value, np.int32))

    def _whole(self, array: np.ndarray) -> jax.Array:
        """The array whole on every device."""
        return jax.device_put(array, self.programs.named(WHOLE))


def filled(target: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of a shape, dtype and sharding, full of one small number."""
    return _filling(target.shape, target.dtype, target.sharding)()


@cache
def _filling(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.full(shape, _VALUE, dtype), out_shardings=sharding)


def _compiled(step: Any, *args: Any) -> Callable[..., Any]:
    """A jitted step compiled for such arguments."""
    return step.lower(*args).compile()
