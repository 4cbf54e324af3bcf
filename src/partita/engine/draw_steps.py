"""The compiled draws of tokens from a step's logits, apart from the step: every kind of draw goes with the
one step that gives logits, which takes far longer to compile.

Knows shapes and shardings, but no slots and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.sharding import PartitionSpec

from partita.engine.local import Local
from partita.engine.shapes import WHOLE
from partita.program.sampling import Drawing, Kind, logits_of_slots, sample
from partita.program.transformer import logits_sharding
from partita.sharding.layout import Layout
from partita.sharding.spec import parse

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
        self.next, self.first = cache(self._next), cache(self._first)

    def history(self, layout: Layout) -> PartitionSpec:
        """How what is known of each token for each slot [slots V] is split: as logits are."""
        return self._programs.spec(parse(logits_sharding(layout)).without("L"))

    def _next(self, layout: Layout, kind: Kind) -> Callable[..., Draw]:
        """(logits [slots 1 V] of decode, settings, positions, known, output) -> `Draw`."""
        sharding = logits_sharding(layout)

        def step(logits, *given):
            return self._drawn(Local(logits, parse(sharding)), kind, *given)

        return self._compiled(step, (self._programs.spec(parse(sharding)),), layout, kind)

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

    def _drawn(self, logits: Local, kind: Kind, settings, positions, known, output) -> Draw:
        split = logits.sharding.without("L")
        history = {} if output is None else {**known, "output": output}
        drawing = Drawing(
            {name: Local(value, parse("B M" if value.ndim > 1 else "B")) for name, value in settings.items()},
            Local(positions, parse("B")),
            {name: Local(value, split) for name, value in history.items()},
        )
        ops, vocabulary = self._programs.ops(), self._programs.model.vocabulary
        drawn = sample(ops, logits, vocabulary, kind, drawing)
        return Draw(*(None if t is None else t.value for t in (drawn.tokens, drawn.output, drawn.logprobs)))

    def _compiled(self, step: Callable[..., Draw], specs: tuple, layout: Layout, kind: Kind) -> Any:
        split = self.history(layout)
        if kind == "full":
            specs += (WHOLE, WHOLE, split, split)
            return self._programs.jit(step, specs, Draw(WHOLE, split, WHOLE), donate=(len(specs) - 1,))
        return self._programs.jit(step, (*specs, WHOLE, WHOLE, WHOLE, None), Draw(WHOLE))
