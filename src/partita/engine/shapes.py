"""In which shapes requests are run, so that few programs are compiled, and none anew for most requests.

Within its capacity an engine has one closed set of shapes: slots for one sequence or for all, of the same
number of tokens; prompts read in chunks of two widths, one on its own or several side by side. Whatever the
mix of requests, no other shapes come. A request beyond the capacity is run in shapes of its own, rounded up
by at most an eighth. Knows sizes and layouts, but no arrays and no settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.program.sampling import KINDS, Kind
from partita.sharding.layout import Layout, Storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import Roles
from partita.specs.arguments import whole_number

BUCKET = 16
"""Tokens of what is run in shapes of its own are rounded up to multiples of this, or of more, so that few
shapes compile."""


@dataclass(frozen=True)
class Capacity:
    """Sequences that are decoded together, and tokens of each, prompt and output, in one set of shapes.

    Every decode step reads as many tokens' keys and values as this, used or not. Raises InputError for what
    is no whole number of at least 1.
    """

    sequences: int = 8
    tokens: int = 512

    def __post_init__(self) -> None:
        for field in ("sequences", "tokens"):
            object.__setattr__(self, field, whole_number(f"capacity.{field}", getattr(self, field)))


@dataclass(frozen=True)
class Reading:
    """Prompts that are read side by side: which, in which layout, padded to so many rows.

    Each step reads one of `widths` tokens of each. `room`: places of their cache; None for a cache that grows
    with what has been read, or for none where a step reads all.
    """

    prompts: range
    layout: Layout
    rows: int
    widths: tuple[int, ...]
    room: int | None = None


@dataclass(frozen=True)
class Decoding:
    """Slots: how many, in which layout, for so many tokens each.

    own: the kinds of draws that have a program of their own; all others share one. None has in slots for any
    mix of requests, which run no program that serves only some of them.
    """

    layout: Layout
    count: int
    capacity: int
    own: tuple[Kind, ...] = KINDS


@dataclass(frozen=True)
class StepSizes:
    """The largest step that reads prompts, and the slots that these come into."""

    prefill: Layout
    decode: Layout
    rows: int  # prompts side by side
    chunk: int  # tokens of each that are read in one step
    longest: int  # tokens of the longest of them
    count: int  # slots
    capacity: int  # tokens that a slot takes
    fixed: int | None  # places of the cache that prompts are read into; None of one that grows, or of none

    @property
    def chunked(self) -> bool:
        """Whether prompts are read into a cache."""
        return self.fixed is not None or self.longest > self.chunk

    @property
    def room(self) -> int:
        """Places of the cache that prompts are read into, once all of it has been; see `Slots.advance`."""
        if self.fixed is not None:
            return self.fixed
        if self.longest <= self.chunk:
            return self.chunk
        room = 2 * self.chunk
        while room < -(-self.longest // self.chunk) * self.chunk:
            room *= 2
        return min(room, self.capacity)


@dataclass(frozen=True)
class StepShapes:
    """Chooses shapes for a model's requests on a mesh.

    longest: tokens that the model takes, None for any number. chunk: tokens of a prompt that are read in one
    step at most. step_tokens: what a step costs beside its tokens, in tokens.
    """

    roles: Mapping[str, Roles]
    storage: Storage
    mesh: Mesh
    longest: int | None
    capacity: Capacity
    chunk: int | None
    step_tokens: int

    def choose(
        self, lengths: Sequence[int], ends: Sequence[int], samples: int
    ) -> tuple[Decoding, list[Reading]]:
        """Shapes for prompts of so many tokens, with their output, and for so many samples of them in all."""
        if samples > self.capacity.sequences or max(ends) > self.tokens:
            return self._of_its_own(lengths, ends, samples)
        alone, together = self.closed()
        decoding = alone[0] if samples == 1 else together[0]
        one, several = alone[1], together[1]
        apart = [Reading(range(i, i + 1), *_fields(one)) for i in range(len(lengths))]
        cost = sum(self._cost(one, [n]) for n in lengths)
        if len(lengths) > 1 and self._cost(several, lengths) <= cost:
            return decoding, [Reading(range(len(lengths)), *_fields(several))]
        return decoding, apart

    def sizes(self, lengths: Sequence[int], ends: Sequence[int], samples: int) -> StepSizes:
        """Of what `choose` gives, what takes most memory: of several readings the one of the largest step."""
        decoding, readings = self.choose(lengths, ends, samples)

        def step(reading: Reading) -> tuple[int, int]:
            width = max(self.widths(reading, max(lengths[number] for number in reading.prompts)))
            return reading.rows * width, width

        reading = max(readings, key=step)
        return StepSizes(
            prefill=reading.layout,
            decode=decoding.layout,
            rows=reading.rows,
            chunk=step(reading)[1],
            longest=max(lengths[number] for number in reading.prompts),
            count=decoding.count,
            capacity=decoding.capacity,
            fixed=reading.room,
        )

    @property
    def tokens(self) -> int:
        """Tokens, prompt and output, that the closed set of shapes is for."""
        found = self.capacity.tokens
        return found if self.longest is None else min(found, self.longest)

    def closed(self) -> list[tuple[Decoding, Reading]]:
        """The closed set: slots for one sequence and for all, and how one prompt and several are read."""
        return [self._closed(sequences) for sequences in (1, self.capacity.sequences)]

    def _closed(self, sequences: int) -> tuple[Decoding, Reading]:
        small, large = (min(n, self.chunk or self.tokens) for n in (_SMALL, _LARGE))
        most = [small, large] if sequences == 1 else [small]
        prefill = self._layout("prefill", sequences, most[-1])
        decode = self._layout("decode", sequences, 1)
        count = ceil_to(sequences, product(self.mesh.size, union(prefill.batch_axes, decode.batch_axes)))
        whole = self._whole(prefill)
        widths = {ceil_to(n, whole) for n in most}
        room = ceil_to(self.tokens, whole)
        return (
            Decoding(decode, count, room, ("greedy",) if sequences == 1 else ()),
            Reading(range(sequences), prefill, count, tuple(sorted(widths)), room),
        )

    def widths(self, reading: Reading, longest: int) -> list[int]:
        """The width of each step that reads prompts of which the longest has so many tokens."""
        small, large = reading.widths[0], reading.widths[-1]
        rest = longest % large
        few = -(-rest // small)
        found = [large] * (longest // large)
        dear = few * self._step(reading, small) > self._step(reading, large)
        return found + ([large] if dear else [small] * few)

    def _cost(self, reading: Reading, lengths: Sequence[int]) -> int:
        return sum(self._step(reading, width) for width in self.widths(reading, max(lengths)))

    def _step(self, reading: Reading, width: int) -> int:
        return reading.rows * width + self.step_tokens

    # -- beyond the capacity --------------------------------------------------------------------------------

    def _of_its_own(
        self, lengths: Sequence[int], ends: Sequence[int], samples: int
    ) -> tuple[Decoding, list[Reading]]:
        longest, prompts = max(lengths), len(lengths)
        width = self._bucket(longest)
        chunk = min(width, self.chunk or width)
        rows, count = _rows(prompts), _rows(samples)
        prefill, decode = self._layout("prefill", rows, chunk), self._layout("decode", count, 1)
        axes = [prefill.batch_axes, decode.batch_axes]
        if prompts == samples:  # they move from one split of the batch to the other
            axes = [union(*axes)] * 2
        rows, count = (
            ceil_to(n, product(self.mesh.size, split)) for n, split in zip((rows, count), axes, strict=True)
        )
        whole = self._whole(prefill)
        chunk = ceil_to(chunk, whole)
        capacity = ceil_to(self._bucket(max(*ends, ceil_to(longest, chunk))), whole)
        return Decoding(decode, count, capacity), [Reading(range(prompts), prefill, rows, (chunk,))]

    def _layout(self, phase: str, sequences: int, queries: int) -> Layout:
        return resolve(self.roles[phase], self.storage, self.mesh, sequences, queries)

    def _whole(self, prefill: Layout) -> int:
        """What divides over the devices that split new tokens, keys or the cache."""
        axes = union(union(prefill.query_axes, prefill.new_axes), self.storage.s_axes)
        return product(self.mesh.size, axes)

    def _bucket(self, tokens: int) -> int:
        """So many tokens or up to an eighth more, so that few shapes compile; as long as the model takes."""
        found = ceil_to(tokens, max(BUCKET, (1 << (tokens - 1).bit_length()) // 16))
        return found if self.longest is None else max(tokens, min(found, self.longest))


_SMALL, _LARGE = 32, 256
"""Tokens of a chunk: of what is short, or left over, or read side by side; and of the rest."""


def _rows(sequences: int) -> int:
    """So many sequences or more: a power of two up to 8, then a multiple of 8."""
    return 1 << (sequences - 1).bit_length() if sequences <= 8 else ceil_to(sequences, 8)


def _fields(reading: Reading) -> tuple[Layout, int, tuple[int, ...], int | None]:
    return reading.layout, reading.rows, reading.widths, reading.room
