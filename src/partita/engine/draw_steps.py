"""The compiled draws of tokens: the next of every slot, from the logits of a step of decode or prefill.

Each is `program.sampling.sample` inside `jax.shard_map`, a program of its own beside the step that gives
logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from partita.engine.cache import WHOLE
from partita.engine.local import Local
from partita.program.sampling import KINDS, LOGPROBS, Drawing, Kind, logits_of_slots, sample
from partita.program.transformer import logits_sharding
from partita.sharding.layout import Layout
from partita.sharding.spec import Sharding, parse

if TYPE_CHECKING:
    from partita.engine.steps import Programs


class Draw(NamedTuple):
    """Next tokens [slots]; of kind "full" also how often each slot has written each token [slots V], and
    log-probabilities (see `program.sampling.Drawn`)."""

    tokens: Any
    output: Any = None
    logprobs: Any = None


class DrawSteps:
    """Draws of tokens for slots in a decode layout.

    settings: name -> [slots], see `program.sampling.NUMBERS`. positions [slots]: where the token will stand.
    Of kind "full" alone: known, `prompt` and `bias` [slots V], and output (donated) [slots V], see
    `program.sampling.SamplingOps.penalise`.
    """

    def __init__(self, programs: Programs):
        self._programs = programs
        self.next, self.first, self.any = cache(self._next), cache(self._first), cache(self._any)

    def history(self, layout: Layout) -> PartitionSpec:
        """How what is known of each token for each slot [slots V] is split: as logits are."""
        return self._programs.spec(parse(logits_sharding(layout)).without("L"))

    def _next(self, layout: Layout, kind: Kind) -> Callable[..., Draw]:
        """(logits [slots 1 V] of decode, settings, positions, known, output) -> `Draw`."""
        sharding = logits_sharding(layout)

        def step(logits, *given):
            return self._drawn(Local(logits, parse(sharding)), kind, *given)

        return self._compiled(step, (self._programs.spec(parse(sharding)),), layout, kind)

    def _any(self, layout: Layout) -> Callable[..., Draw]:
        """(logits [slots 1 V] of decode, settings, positions, known, output, kind []) -> `Draw`: of whichever
        kind, by its place in `KINDS`.

        One program, of which a draw runs the part that its kind needs. It takes as long to compile as those
        of all kinds, several times that of the greedy one.
        """
        sharding = logits_sharding(layout)

        def step(logits, settings, positions, known, output, kind):
            def of(kind: Kind) -> Callable[[jax.Array], Draw]:
                def draw(output: jax.Array) -> Draw:
                    found = self._drawn(
                        Local(logits, parse(sharding)), kind, settings, positions, known, output
                    )
                    if kind == "full":
                        return found
                    return Draw(found.tokens, output, jnp.zeros((len(positions), LOGPROBS), jnp.float32))

                return draw

            return jax.lax.switch(kind, [of(each) for each in KINDS], output)

        split = self.history(layout)
        specs = (self._programs.spec(parse(sharding)), WHOLE, WHOLE, split, split, WHOLE)
        return self._programs.jit(step, specs, Draw(WHOLE, split, WHOLE), donate=(4,))

    def _first(self, source: Layout, target: Layout, kind: Kind) -> Callable[..., Draw]:
        """(logits [B 1 V] of prefill, rows [slots], settings, positions, known, output) -> `Draw`: the first
        token of every slot, from the prompt in its row."""
        before = parse(logits_sharding(source))

        def step(logits, rows, *given):
            ops = self._programs.ops()
            own = logits_of_slots(
                ops, Local(logits, before), Local(rows, parse("B")), logits_sharding(target)
            )
            return self._drawn(own, kind, *given)

        return self._compiled(step, (self._programs.spec(before), WHOLE), target, kind)

    def drawing(self, logits: Sharding, settings, positions, known, output) -> Drawing[Local]:
        """What tokens are drawn by, of logits in this sharding."""
        split = logits.without("L")
        history = {} if output is None else {**known, "output": output}
        return Drawing(
            {name: Local(value, parse("B M" if value.ndim > 1 else "B")) for name, value in settings.items()},
            Local(positions, parse("B")),
            {name: Local(value, split) for name, value in history.items()},
        )

    def _drawn(self, logits: Local, kind: Kind, settings, positions, known, output) -> Draw:
        drawing = self.drawing(logits.sharding, settings, positions, known, output)
        ops, vocabulary = self._programs.ops(), self._programs.model.vocabulary
        drawn = sample(ops, logits, vocabulary, kind, drawing)
        return Draw(*(None if t is None else t.value for t in (drawn.tokens, drawn.output, drawn.logprobs)))

    def _compiled(self, step: Callable[..., Draw], specs: tuple, layout: Layout, kind: Kind) -> Any:
        split = self.history(layout)
        if kind == "full":
            specs += (WHOLE, WHOLE, split, split)
            return self._programs.jit(step, specs, Draw(WHOLE, split, WHOLE), donate=(len(specs) - 1,))
        return self._programs.jit(step, (*specs, WHOLE, WHOLE, WHOLE, None), Draw(WHOLE))
