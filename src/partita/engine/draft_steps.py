"""The compiled steps that verify drafted tokens: decode of several tokens of each sequence, and their draws.

The same program as decode, on more query tokens; a sequence without drafts rides along with its last token
alone. Keys and values of drafts that are not accepted stay in the cache behind its length, where nothing sees
them, until the next step writes there. Knows shapes and shardings, but not where drafts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from partita.engine.cache import WHOLE, kept
from partita.engine.compile_time import compiling
from partita.engine.local import Local
from partita.program.sampling import Drafts, Kind, verify
from partita.program.transformer import logits_sharding
from partita.sharding.layout import Layout
from partita.sharding.spec import parse

if TYPE_CHECKING:
    from partita.engine.steps import Programs

State = Literal["unknown", "compiling", "ready", "failed"]


class Verified(NamedTuple):
    """What is drawn after each token [slots L]; how many drafted tokens are accepted, the last token that is
    written and where it stands, each [slots]; the rest as `draw_steps.Draw` has it, log-probabilities
    [slots L M]."""

    tokens: Any
    accepted: Any
    last: Any
    positions: Any
    output: Any = None
    logprobs: Any = None


class Rows(NamedTuple):
    """Slots, the tokens of each that a step reads, and those that a slot has room for."""

    slots: int
    width: int
    capacity: int


class Pair(NamedTuple):
    """The decode of drafts, and their draws."""

    decode: Callable[..., Any]
    verify: Callable[..., Verified]


class DraftSteps:
    """Steps that verify drafts, in a decode layout; shapes are whatever they are called with.

    They are compiled when they are first called, or before that in a thread of their own (`prepare`).
    """

    def __init__(self, programs: Programs):
        self._programs = programs
        self.decode, self.verify = cache(self._decode), cache(self._verify)
        self._ahead: dict[tuple[Layout, Kind, Rows], Future[Pair]] = {}
        self._seconds: dict[str, float] = {}

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling the step of one token took, ahead of it or in it: another takes as long.

        Where it was read from JAX's cache too: this one may not be there.
        """
        return sum(self._seconds.values())

    @contextmanager
    def timed(self, part: Literal["decode", "draw"]) -> Iterator[None]:
        """Notes how long it takes to compile this part of a step of one token; the last time counts."""
        with compiling() as found:
            yield
        if found.seconds:
            self._seconds[part] = found.seconds

    def pair(self, layout: Layout, kind: Kind, rows: Rows) -> Pair:
        """Both steps for so many rows; those that `prepare` compiles are waited for, others compiled now."""
        ahead = self._ahead.get((layout, kind, rows))
        if ahead is None:
            ahead = self._ahead[layout, kind, rows] = Future()
            ahead.set_result(Pair(self.decode(layout), self.verify(layout, kind)))
        return ahead.result()

    def state(self, layout: Layout, kind: Kind, rows: Rows) -> State:
        """How far `prepare` has come with the steps for so many rows; generation goes on without those that
        could not be compiled."""
        ahead = self._ahead.get((layout, kind, rows))
        if ahead is None:
            return "unknown"
        if not ahead.done():
            return "compiling"
        return "failed" if ahead.exception() else "ready"

    def prepare(self, layout: Layout, kind: Kind, rows: Rows, given: tuple[tuple, tuple]) -> None:
        """Compiles both steps beside whatever runs, for arguments such as `given`: those of decode, and what
        the draws are given beside logits and what decode is given too."""
        if (layout, kind, rows) in self._ahead:
            return
        programs, sharding = self._programs, parse(logits_sharding(layout))
        decoded, drawn = jax.tree.map(_shape, given)
        size = (rows.slots, rows.width, programs.padded["V"])
        logits = jax.ShapeDtypeStruct(size, jnp.float32, sharding=programs.named(programs.spec(sharding)))

        def compiled() -> Pair:
            decode = self.decode(layout).lower(*decoded).compile()
            return Pair(decode, self.verify(layout, kind).lower(logits, *decoded[2:], *drawn).compile())

        pool = ThreadPoolExecutor(1, "compile-drafts")
        self._ahead[layout, kind, rows] = pool.submit(compiled)
        pool.shutdown(wait=False)

    def _decode(self, layout: Layout) -> Any:
        """(parameters, cache (donated), tokens [slots L], positions [slots], counts [slots]) -> logits
        [slots L V] after each token, the cache.

        tokens: the last of each slot, at its position, and `counts` - 1 that are drafted; a count of 0 writes
        nothing.
        """
        programs = self._programs

        def step(parameters, cache, tokens, positions, counts):
            at = positions[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
            run = programs.pass_at(programs.ops(), layout, at, positions + counts)
            logits, cache = programs.forward(run, parameters, tokens, cache=cache)
            return logits.value, cache

        cache = programs.cache_specs(*kept(layout))
        in_specs = (programs.parameter_specs(), cache, WHOLE, WHOLE, WHOLE)
        out = (programs.spec(parse(logits_sharding(layout))), cache)
        return programs.jit(step, in_specs, out, donate=(1,), layout=layout)

    def _verify(self, layout: Layout, kind: Kind) -> Any:
        """(logits [slots L V], tokens, positions and counts as decode has them, settings, known, output) ->
        `Verified`; the last three are as `DrawSteps` has them."""
        programs, draws = self._programs, self._programs.draws
        sharding = parse(logits_sharding(layout))

        def step(logits, tokens, positions, counts, settings, known, output):
            after = jnp.where(positions < 0, positions, positions + 1)
            drawing = draws.drawing(sharding, settings, after, known, output)
            drafts = Drafts(Local(tokens, parse("B L")), Local(counts, parse("B")))
            drawn, accepted = verify(
                programs.ops(), Local(logits, sharding), programs.model.vocabulary, kind, drawing, drafts
            )
            new = drawn.tokens.value.reshape(tokens.shape)
            last = jnp.take_along_axis(new, accepted.value[:, None], axis=1)[:, 0]
            found = Verified(new, accepted.value, last, jnp.where(after < 0, after, after + accepted.value))
            if drawn.output is None or drawn.logprobs is None:
                return found
            logprobs = drawn.logprobs.value.reshape(*tokens.shape, -1)
            return found._replace(output=drawn.output.value, logprobs=logprobs)

        specs, out = (programs.spec(sharding), *[WHOLE] * 4), Verified(*[WHOLE] * 4)
        if kind != "full":
            return programs.jit(step, (*specs, WHOLE, None), out)
        split = draws.history(layout)
        out = out._replace(output=split, logprobs=WHOLE)
        return programs.jit(step, (*specs, split, split), out, donate=(len(specs) + 1,))


def _shape(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
