"""The programs that generation launches for one step, one after the other: the step itself, which ends with
logits, and the draw of the likeliest tokens from them. What their compiled forms take of a device's memory.

Shapes only: nothing is run here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from partita.engine.requests import IDLE, arrays
from partita.engine.steps import Programs
from partita.sharding.layout import Layout


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
