"""Slots: a decode cache of a fixed number of sequences, and the steps that a scheduler drives it by.

Prompts are read on their own, whole or in chunks, in the prefill layout; what they leave is put into slots,
any number of samples of each; a decode step draws a token for every slot; a slot that is freed can be filled
again. Shapes are fixed, so that nothing is compiled anew. Knows no texts, stop rules or order of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from partita.engine.cache import WHOLE
from partita.engine.draft_steps import Rows, State, Verified
from partita.engine.draw_steps import Draw
from partita.engine.requests import IDLE, Sample, arrays, biases, written
from partita.engine.shapes import Decoding
from partita.engine.steps import Programs
from partita.errors import InputError
from partita.program.sampling import KINDS, Kind
from partita.sharding.layout import Layout

_NOBODY = -1
"""The position of a slot without a sequence."""

Masks = Callable[[], Mapping[int, np.ndarray]]
"""Gives, for slots whose sample is `masked`, which tokens may be drawn: bool [vocabulary] each. It is called
while the devices find the logits, so that masks are made beside a step and not before it."""


@dataclass
class Prompts:
    """Prompts on their way through prefill, side by side: rows of one cache in the prefill layout."""

    ids: list[Sequence[int]]
    layout: Layout
    widths: Sequence[int]  # tokens of each that are read in each step
    lengths: np.ndarray  # int32 [rows]; rows beyond the prompts are padding, of one token
    fixed: int | None = None  # places that the cache has from the beginning; None of one that grows
    cache: Any = None
    room: int = 0  # places of the cache
    logits: Any = None  # [rows 1 V] of the last token of each prompt that has been read to its end
    read: int = 0  # tokens of each prompt, or all that it has
    steps: int = 0

    @property
    def done(self) -> bool:
        return self.read >= int(self.lengths.max())


@dataclass(frozen=True)
class Place:
    """Where a sample goes: the row of its prompt and its slot; and what it is drawn by."""

    row: int
    slot: int
    sample: Sample


@dataclass(frozen=True)
class Tokens:
    """The next token of every slot [slots], `NO_TOKEN` where its logits are not finite, and of kind "full"
    log-probabilities [slots M] (see `program.sampling.Drawn`). Those of free slots mean nothing.

    Where drafts were verified, the next tokens [slots L] and log-probabilities [slots L M], of which each
    slot has as many as `counts` [slots] says.
    """

    tokens: np.ndarray
    logprobs: np.ndarray | None = None
    counts: np.ndarray | None = None

    def of(self, slot: int) -> list[tuple[int, np.ndarray | None]]:
        """The next tokens of a slot, each with its log-probabilities [M]."""
        if self.counts is None:
            return [(int(self.tokens[slot]), None if self.logprobs is None else self.logprobs[slot])]
        return [
            (int(self.tokens[slot, at]), None if self.logprobs is None else self.logprobs[slot, at])
            for at in range(self.counts[slot])
        ]


class Slots:
    """Slots for up to `capacity` tokens each, prompt and output together, decoded in one layout.

    For every prompt: `begin`, `advance` until that says it is done, `insert`; then `step` after `step`, or
    `verify` in place of any, and `free` where one has ended. Their count and capacity must be such as the
    layouts split evenly. `verify` reads `Programs.width` tokens of a slot.
    """

    def __init__(self, programs: Programs, parameters: Mapping[str, jax.Array], shape: Decoding):
        self.programs, self.parameters, self.shape = programs, parameters, shape
        self.layout, self.own = shape.layout, shape.own
        self.count, self.capacity, self.width = shape.count, shape.capacity, programs.width
        count = self.count
        self._rows = Rows(count, programs.width, self.capacity)
        self.samples: list[Sample | None] = [None] * count  # what each slot is drawn by; None of a free one
        self._cache: Any = None
        self._tokens = self._whole(np.zeros(count, np.int32))
        self._last = np.zeros(count, np.int32)  # the same on the host, where it is fetched to
        self._positions = np.full(count, _NOBODY, np.int32)  # where each slot's last token stands
        size = (count, programs.padded["V"])
        self._history = {
            "prompt": np.zeros(size, np.int32),
            "output": np.zeros(size, np.int32),
            "bias": np.zeros(size, np.float32),
        }
        self._known: dict[str, jax.Array] = {}  # the same on the devices; up to date where a draw needs it
        self._sent: _Sent | None = None

    # -- prompts ------------------------------------------------------------------------------------------

    def begin(
        self,
        ids: Sequence[Sequence[int]],
        layout: Layout,
        rows: int,
        widths: Sequence[int],
        room: int | None = None,
    ) -> Prompts:
        """Prompts to be read in a prefill layout, so many tokens in each step, padded to `rows` of them.

        widths: of all steps; the last goes on where that is not enough. room: places of their cache, the
        capacity at most, so that steps of other prompts are in the same shapes; None for a cache that grows.

        Raises InputError (field "context") for one that does not fit into a slot.
        """
        for each in ids:
            self._check(len(each))
        lengths = np.ones(rows, np.int32)
        lengths[: len(ids)] = [len(each) for each in ids]
        return Prompts(list(ids), layout, widths, lengths, room)

    def advance(self, prompts: Prompts) -> bool:
        """Reads the next tokens of every prompt; whether all have been read to their end.

        Prompts of one step attend to themselves, without a cache, unless its room is fixed.
        """
        first, width = prompts.read, prompts.widths[min(prompts.steps, len(prompts.widths) - 1)]
        tokens = np.zeros((len(prompts.lengths), width), np.int32)
        for row, each in enumerate(prompts.ids):
            part = each[first : first + width]
            tokens[row, : len(part)] = part
            tokens[row, len(part) :] = each[-1]  # padding as finite as the prompt: it is masked, not left out
        prompts.read += width
        prompts.steps += 1
        if prompts.done and not first and prompts.fixed is None:
            run = self.programs.prefill(prompts.layout)
            prompts.logits, prompts.cache = run(self.parameters, tokens, prompts.lengths)
            return True
        self._make_room(prompts)
        held = np.minimum(first, prompts.lengths)
        counts = np.minimum(prompts.lengths - held, width)
        ends = np.bool_(np.any((counts > 0) & (held + counts == prompts.lengths)))
        run = self.programs.read(prompts.layout)
        prompts.logits, prompts.cache = run(
            self.parameters, prompts.cache, prompts.logits, tokens, held, counts, prompts.lengths, ends
        )
        return prompts.done

    def _make_room(self, prompts: Prompts) -> None:
        """A cache for all tokens that will have been read. It doubles as it fills: a step attends to all of
        it, so that early chunks attend to little."""
        widest = max(prompts.widths)
        room = prompts.room or 2 * widest
        while room < prompts.read:
            room *= 2
        room = prompts.fixed or min(room, self.capacity)
        if prompts.cache is None:
            rows = len(prompts.lengths)
            prompts.cache = self.programs.empty(self.programs.cache(prompts.layout, rows, room, widest))
            prompts.logits = self.programs.empty(self.programs.last_logits(prompts.layout, rows))
        elif room > prompts.room:
            prompts.cache = self.programs.grown(prompts.layout, room, widest)(prompts.cache)
        prompts.room = room

    def insert(self, prompts: Prompts, places: Sequence[Place], masks: Masks | None = None) -> Tokens:
        """Puts prompts that have been read into free slots, and draws the first token of each of these slots,
        of those that `masks` allow.

        Raises InputError (field "context") where prompt and output do not fit into a slot, ValueError for a
        slot that is not free and for prompts that are not done; nothing has changed then.
        """
        for place in places:
            self._check(len(prompts.ids[place.row]), place.sample.request.max_tokens)
        taken = [place.slot for place in places]
        if not prompts.done or len({*taken}) < len(taken) or any(self.samples[slot] for slot in taken):
            raise ValueError(f"slots {taken} must be free and different, and their prompts done")
        rows, slots, source = (np.full(self.count, n, np.int32) for n in (0, _NOBODY, 0))
        for number, place in enumerate(places):
            rows[number], slots[number], source[place.slot] = place.row, place.slot, place.row
            self._take(place, prompts.ids[place.row])
        given = prompts.cache, prompts.lengths, prompts.logits, source
        if self._cache is None and self._fills(prompts, places):
            run = self.programs.fill(prompts.layout, self.layout, self.capacity)
            logits, self._cache = run(*given)
        else:
            if self._cache is None:
                shapes = self.programs.slots(self.layout, self.count, self.capacity)
                self._cache = self.programs.empty(shapes)
            run = self.programs.insert(prompts.layout, self.layout, self.capacity)
            logits, self._cache = run(self._cache, *given, rows, slots)
        self._sent = None
        found = self._drawn(logits, self._send(), np.isin(np.arange(self.count), slots), masks)
        self._tokens = self._whole(self._last)  # slots that were not asked keep theirs
        self._sent = None  # it has counted tokens for these too
        return found

    def _fills(self, prompts: Prompts, places: Sequence[Place]) -> bool:
        """Whether prompts become slots as they are: one program more, which saves a copy of the cache."""
        straight = [(place.row, place.slot) for place in places] == [(i, i) for i in range(len(prompts.ids))]
        return straight and len(prompts.lengths) == self.count and bool(self.own)

    def _check(self, prompt: int, output: int = 1) -> None:
        if prompt + output - 1 > self.capacity:  # the last token is written, and never read
            raise InputError("context", prompt + output, f"a slot takes up to {self.capacity + 1} tokens")

    def _take(self, place: Place, ids: Sequence[int]) -> None:
        request, slot = place.sample.request, place.slot
        self.samples[slot], self._positions[slot] = place.sample, len(ids)
        if place.sample.kind == "full":
            vocabulary = self.programs.padded["V"]
            self._history["prompt"][slot] = written(ids, vocabulary)
            self._history["output"][slot] = 0
            self._history["bias"][slot] = biases(request, vocabulary)

    # -- decoding -----------------------------------------------------------------------------------------

    def step(self, masks: Masks | None = None) -> Tokens:
        """The next token of every slot, one of those that `masks` allow."""
        sent = self._send()
        run = self.programs.decode(self.layout)  # one program, whatever is drawn in whichever slot
        given = self.parameters, self._cache, self._tokens, sent.positions
        with self.programs.drafts.timed("decode"):
            logits, sent.positions, self._cache = run(*given)
        busy = self._positions != _NOBODY
        found = self._drawn(logits, sent, busy, masks)
        self._positions += busy
        return found

    def _drawn(self, logits: jax.Array, sent: _Sent, asked: np.ndarray, masks: Masks | None = None) -> Tokens:
        """Tokens from logits [slots 1 V], of which those of `asked` slots are meant."""
        if masks is not None and (allowed := masks()):
            self._restrict(allowed)
        given = logits, sent.settings, sent.positions
        with self.programs.drafts.timed("draw"):
            if sent.kind in self.own:
                run = self.programs.draws.next(self.layout, sent.kind)
                draw = run(*given, *self._history_for(sent.kind))
            else:
                run = self.programs.draws.any(self.layout)
                draw = run(*given, *self._history_for("full"), np.int32(KINDS.index(sent.kind)))
        self._tokens = draw.tokens
        if draw.output is not None:
            self._known["output"] = draw.output
        return self._fetched(draw, asked, sent.kind)

    def _restrict(self, allowed: Mapping[int, np.ndarray]) -> None:
        """Only these tokens [vocabulary] are drawn into these slots next: a bias keeps all others out."""
        bias = self._history["bias"]
        for slot, tokens in allowed.items():
            sample = self.samples[slot]
            if sample is None or not sample.masked:
                raise ValueError(f"what is drawn into slot {slot} is not masked")
            row = biases(sample.request, bias.shape[1])
            row[: len(tokens)][~tokens] = -np.inf
            bias[slot] = row
        place = self.programs.named(self.programs.draws.history(self.layout))
        self._known["bias"] = jax.device_put(bias.copy(), place)

    def verify(self, drafts: Mapping[int, Sequence[int]]) -> Tokens:
        """The next tokens of every slot: those of its draft, up to `width` - 1, that are what is drawn, and
        one more. They are the same tokens that as many times `step` gives, but for the last bits of logits.

        Raises ValueError for a draft of a free slot, and for one that is too long.
        """
        tokens, busy = np.zeros((self.count, self.width), np.int32), self._positions != _NOBODY
        tokens[:, 0], counts = self._last, busy.astype(np.int32)
        for slot, draft in drafts.items():
            fits = 1 + len(draft) <= min(self.width, self.capacity - self._positions[slot])
            if self.samples[slot] is None or not fits:
                raise ValueError(f"a draft of {len(draft)} tokens does not fit slot {slot}")
            tokens[slot, 1 : 1 + len(draft)], counts[slot] = draft, 1 + len(draft)
        sent = self._send()
        given = self.parameters, self._cache, self._whole(tokens), sent.positions, self._whole(counts)
        steps = self.programs.drafts.pair(self.layout, sent.kind, self._rows)
        logits, self._cache = steps.decode(*given)
        one = steps.verify(logits, *given[2:], sent.settings, *self._history_for(sent.kind))
        if one.output is not None:
            self._known["output"] = one.output
        sent.positions, self._tokens = one.positions, one.last
        fetched = self._fetched(one, busy, sent.kind, one.accepted)
        self._positions += np.where(busy, [len(fetched.of(slot)) for slot in range(self.count)], 0)
        return fetched

    @property
    def verifying(self) -> State:
        """Whether `prepare` has compiled what `verify` runs, or is at it."""
        return self.programs.drafts.state(self.layout, self._send().kind, self._rows)

    def prepare(self) -> None:
        """Compiles what `verify` runs, beside the steps to come."""
        sent, tokens = self._send(), self._whole(np.zeros((self.count, self.width), np.int32))
        given = self.parameters, self._cache, tokens, sent.positions, sent.positions
        drawn = sent.settings, *self._history_for(sent.kind)
        self.programs.drafts.prepare(self.layout, sent.kind, self._rows, (given, drawn))

    def _history_for(self, kind: Kind) -> tuple[dict[str, jax.Array], jax.Array | None]:
        """What a program for this kind of draws is given of the tokens before, and of those written."""
        if kind != "full":
            return {}, None
        known = self._known
        return {name: known[name] for name in ("prompt", "bias")}, known["output"]

    def free(self, slot: int) -> None:
        """Ends what is in a slot; it can be filled again."""
        self.samples[slot], self._positions[slot] = None, _NOBODY
        for known in self._history.values():
            known[slot] = 0
        self._sent = None

    def _fetched(
        self, draw: Draw | Verified, new: np.ndarray, kind: Kind, accepted: jax.Array | None = None
    ) -> Tokens:
        """A draw on the host: all that is fetched in a step. Tokens of `new` slots are counted as written."""
        logprobs = draw.logprobs if kind == "full" else None
        tokens, logprobs, extra = jax.device_get((draw.tokens, logprobs, accepted))
        found = Tokens(tokens, logprobs, None if extra is None else extra + 1)
        for slot in np.flatnonzero(new):
            written, sample = [token for token, _ in found.of(int(slot))], self.samples[slot]
            self._last[slot] = written[-1]
            if sample is not None and sample.kind == "full":
                np.add.at(self._history["output"][slot], written, 1)
        return found

    # -- what the steps are given -------------------------------------------------------------------------

    def _send(self) -> _Sent:
        """What the devices know of the slots; sent anew where a slot was filled or freed."""
        if self._sent is None:
            samples = [sample or IDLE for sample in self.samples]
            kind = KINDS[max(KINDS.index(sample.kind) for sample in samples)]
            if kind == "full" or (kind not in self.own and not self._known):
                place = self.programs.named(self.programs.draws.history(self.layout))
                self._known = {n: jax.device_put(each.copy(), place) for n, each in self._history.items()}
            settings = {name: self._whole(setting) for name, setting in arrays(samples).items()}
            self._sent = _Sent(kind, self._whole(self._positions), settings)
        return self._sent

    def _whole(self, array: np.ndarray) -> jax.Array:
        """A copy on every device, since a CPU device may go on reading the host's own memory."""
        return jax.device_put(array.copy(), self.programs.named(WHOLE))


@dataclass
class _Sent:
    """What the devices know of the slots."""

    kind: Kind
    positions: jax.Array
    settings: dict[str, jax.Array]
