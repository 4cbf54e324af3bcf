"""Seconds of a server's steps, from tables that the cost model fills in a few vectorised passes.

A step's operations are of three kinds, which add up:

    rows       all that works token by token: matmuls, their collectives, the layers' own time; a function of
               the tokens that are new, whoever's they are
    attention  each sequence's new tokens on its own cache
    head       the unembedding and the draw, of one token of each sequence

A step that decodes, or reads one prompt, is priced whole, as `predict` prices it. One that reads several
prompts has the rows of all their tokens and the attention of each. In a fused step the rows of the prompts
and of the sequences pass together, in prefill's layout; otherwise one program follows the other. Times are
bounds or estimates, as asked, and never both: for the bound compute, memory and communication are summed
apart, and the larger of the first two counts (Pope et al. 2022, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from partita.cost.estimate import estimate
from partita.cost.ledger import Ledger
from partita.cost.number import Number
from partita.cost.roofline import Peaks, bound
from partita.cost.setting import Setting
from partita.cost.step import StepShape, price_cache_reshard, price_step
from partita.errors import InputError
from partita.sharding.layout import Layout, Storage, resolve
from partita.sharding.roles import Roles
from partita.simulation.tables import Curve, Floats, Rows, Surface, grid
from partita.specs.profile import Profile

Basis = Literal["bound", "estimate"]
_HEAD = ("last", "final_norm", "unembed", "greedy")
"""Scopes of the head; those of attention end in "attend"."""
_TOGETHER = 16
"""Prompts in a step from which on more are priced as so many."""
_LONGEST = 2**20
"""Tokens of a sequence whose cache is moved: the seconds are all but linear in them."""
_EXACT = 64
"""Sequences up to which every number of them is priced."""


@dataclass(frozen=True)
class Sizes:
    """What tables are made for: most sequences, longest prompt portion and longest context in tokens."""

    slots: int
    tokens: int
    context: int


class Pricing:
    """The cost model for one server: a setting, whose mesh and formats count and whose workload does not, the
    storage that all layouts share, and the basis of times.

    `peaks` in place of the setting's, where a server multiplies in another format. Raises InputError for
    pipeline stages, and (field "by") for an estimate where there is no profile.
    """

    def __init__(
        self,
        setting: Setting,
        storage: Storage,
        basis: Basis,
        peaks: Peaks | None = None,
        profile: Profile | None = None,
    ):
        if setting.stages != 1:
            raise InputError("stages", setting.stages, "a load is simulated without pipeline stages")
        self.setting, self.storage = setting, storage
        self.peaks = peaks or setting.peaks
        self.profile = profile or setting.cluster.profile
        if basis == "estimate" and self.profile is None:
            raise InputError(
                "by",
                basis,
                f"{setting.cluster.name} has no efficiency profile to estimate by; bound is accepted",
            )
        self.estimates = basis == "estimate"

    @property
    def host_seconds(self) -> float:
        """Seconds of the host, once a program."""
        return self.profile.value("step_seconds") if self.estimates and self.profile is not None else 0.0

    def steps(
        self, roles: Roles, batch: Floats, queries: Floats, context: Floats | None
    ) -> tuple[Floats, Floats, Floats]:
        """Steps [n] of `batch` sequences with `queries` new tokens each: the whole, its rows and its head.

        Each [parts, n], in seconds: of the estimate one part, of the bound compute, memory, communication.
        """
        shape = (1 if self.estimates else 3, len(batch))
        whole, rows, head = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        layouts: dict[Layout, list[int]] = {}
        known: dict[tuple[int, int], Layout] = {}
        for i, key in enumerate(zip(batch.astype(int).tolist(), queries.astype(int).tolist(), strict=True)):
            if key not in known:
                known[key] = resolve(roles, self.storage, self.setting.mesh, *key)
            layouts.setdefault(known[key], []).append(i)
        for layout, where in layouts.items():
            given = StepShape(batch[where], queries[where], None if context is None else context[where])
            setting = self.setting
            ledger = price_step(setting.model, layout, setting.mesh.size, setting.formats, given).ledger
            attends = [e for e in ledger.entries if not e.scope.endswith("attend")]
            ends = [e for e in attends if e.scope.split("/")[0] in _HEAD]
            others = [e for e in attends if e.scope.split("/")[0] not in _HEAD]
            whole[:, where] = self._parts(ledger, whole=True)
            rows[:, where] = self._parts(Ledger(others, layers=ledger.layers))
            head[:, where] = self._parts(Ledger(ends))
        return whole, rows, head

    def reshard(self, source: Layout, target: Layout, batch: Floats, tokens: Floats) -> Floats:
        """Moving the cache of `batch` sequences of `tokens` [n] from one layout to another, [parts, n]."""
        setting = self.setting
        ledger = price_cache_reshard(
            setting.model, source, target, setting.mesh.size, setting.formats, StepShape(batch, tokens)
        )
        return self._parts(ledger, count=len(tokens), whole=True)

    def _parts(self, ledger: Ledger, whole: bool = False, count: int | None = None) -> Floats:
        """Seconds [parts, n] of these operations, or of a whole step."""
        found: list[Number]
        if self.estimates:
            assert self.profile is not None
            each = estimate(ledger, self.peaks, self.profile)
            found = [
                each.device_seconds
                if whole
                else each.operation_seconds
                + each.communication_seconds
                + ledger.layers * self.profile.value("layer_seconds")
            ]
        else:
            least = bound(ledger, self.peaks)
            found = [least.compute_seconds, least.memory_seconds, least.communication_seconds]
        arrays = [np.asarray(part, float) for part in found]
        size = count or max((array.size for array in arrays), default=1)
        return np.stack([np.broadcast_to(array, size) for array in arrays])


class DecodePrices:
    """Seconds of decode steps in one layout."""

    def __init__(self, pricing: Pricing, roles: Roles, sizes: Sizes):
        slots, contexts = sizes.slots, grid(sizes.context, 2)
        counts = [*range(1, min(slots, _EXACT) + 1)]
        if slots > _EXACT:
            counts += grid(slots, 16, _EXACT)[1:]
        counts = [n for n in counts if n <= slots]
        batch, context = (np.array(axis, float) for axis in np.meshgrid(counts, contexts, indexing="ij"))
        given = batch.reshape(-1), np.ones(batch.size), context.reshape(-1)
        whole, rows, head = (part.reshape(-1, *batch.shape) for part in pricing.steps(roles, *given))
        every = np.arange(slots + 1)
        self.host = pricing.host_seconds

        def filled(part: Floats) -> Floats:
            """For every number of sequences, from those that are priced."""
            columns = [np.interp(every, counts, part[:, j]) for j in range(part.shape[1])]
            return np.stack(columns, axis=1)

        self._whole = [Rows(contexts, filled(part)) for part in whole]
        self.attention = [Rows(contexts, filled(part)) for part in whole - rows - head]
        self.head = [filled(part)[:, 0].tolist() for part in head]

    def __call__(self, sequences: int, attended: float) -> float:
        """Seconds of a step of 1 or more sequences that attend to so many tokens, all together, their new
        ones included."""
        mean, whole = attended / sequences, self._whole
        if len(whole) == 1:
            return whole[0](sequences, mean) + self.host
        return larger([part(sequences, mean) for part in whole]) + self.host


class Prices:
    """Seconds of all steps of a server; `portions` are (tokens, start) of each prompt that a step reads.

    `decode`: the layout of decode, or several that it may switch between.
    """

    def __init__(self, pricing: Pricing, prefill: Roles, decode: Sequence[Roles], sizes: Sizes):
        self.layouts = [DecodePrices(pricing, roles, sizes) for roles in decode]
        self.decode = self.layouts[0]
        self.host = pricing.host_seconds
        tokens, starts = grid(sizes.tokens, 8), [0, *grid(sizes.context, 2, 64)]
        self._together: list[tuple[int, list[Curve], list[Surface]]] = []
        together = 1
        while together <= min(_TOGETHER, sizes.slots):
            self._together.append((together, *_reading(pricing, prefill, together, tokens, starts)))
            together *= 2
        self._most, self._slots = max(tokens), sizes.slots
        self._moves = _moving(pricing, (prefill, max(tokens)), (decode[0], 1), 1)
        self._switches = {
            (a, b): _moving(pricing, (decode[a], 1), (decode[b], 1), sizes.slots)
            for a in range(len(decode))
            for b in range(len(decode))
            if a != b
        }

    def step(
        self,
        portions: Sequence[tuple[int, int]],
        sequences: int,
        attended: float,
        fused: bool,
        layout: int = 0,
    ) -> float:
        """Seconds of a step that reads these, if any, and decodes so many sequences, if any: in one pass
        where `fused`, else one program after the other."""
        decode = self.layouts[layout]
        if not portions:
            return decode(sequences, attended)
        if sequences and fused:
            return self.fused(portions, sequences, attended)
        seconds = self.read(portions)
        return seconds + decode(sequences, attended) if sequences else seconds

    def read(self, portions: Sequence[tuple[int, int]]) -> float:
        """Seconds of a program that reads these."""
        return larger(self._read(portions, 0)) + self.host

    def fused(self, portions: Sequence[tuple[int, int]], sequences: int, attended: float) -> float:
        """Seconds of one pass that reads these and decodes `sequences`, which attend to so many tokens."""
        found = self._read(portions, sequences)
        mean, decode = attended / sequences, self.decode
        for i, part in enumerate(found):
            head = decode.head[i]
            more = head[sequences] - head[1]  # one is counted with the prompts
            found[i] = part + decode.attention[i](sequences, mean) + more
        return larger(found) + self.host

    @property
    def moves(self) -> bool:
        """Whether prefill and decode lay out keys and values differently."""
        return self._moves is not None

    def moved(self, tokens: int) -> float:
        """Seconds of moving the keys and values of a prompt to decode's layout."""
        return 0.0 if self._moves is None else larger([part(tokens) for part in self._moves])

    def switched(self, tokens: int, source: int, target: int) -> float:
        """Seconds of moving the cache, so many tokens spread over all slots, between decode layouts."""
        found = self._switches[source, target]
        return 0.0 if found is None else larger([part(tokens / self._slots) for part in found])

    def tokens_within(self, seconds: float, sequences: int, attended: int, fused: bool) -> int:
        """The most tokens of a prompt that a step reads beside these sequences in so many seconds, if the
        prompt is at its start; 0 where the sequences alone take as long."""
        if self.decode(sequences, attended) >= seconds:
            return 0
        low, high = 0, self._most
        while high - low > max(1, low // 32):  # 3% is as near as any price is
            middle = (low + high) // 2
            took = self.step([(middle, 0)], sequences, attended, fused)
            low, high = (middle, high) if took <= seconds else (low, middle)
        return low

    def _read(self, portions: Sequence[tuple[int, int]], more: int) -> list[float]:
        """Parts of reading these, and of the rows of so many tokens more."""
        index = min(len(portions).bit_length(), len(self._together)) - 1
        together, rows, attention = self._together[index]
        for tokens, _ in portions:
            more += tokens
        each = more / together
        found = []
        for curve, surface in zip(rows, attention, strict=True):
            seconds = 0.0
            for tokens, start in portions:
                seconds += surface(tokens, start)
            found.append(curve(each) + seconds / together)
        return found


def larger(parts: Sequence[float]) -> float:
    """Seconds of all parts: the larger of compute and memory, and communication; or the one there is."""
    return parts[0] if len(parts) == 1 else max(parts[0], parts[1]) + parts[2]


def _reading(
    pricing: Pricing, roles: Roles, together: int, tokens: Sequence[int], starts: Sequence[int]
) -> tuple[list[Curve], list[Surface]]:
    """Rows of `together` prompts by the tokens of each, and the attention of all by tokens and start.

    From the start a prompt is read without a cache, as `predict` reads it.
    """
    each = np.array(tokens, float)
    first, rows, head = pricing.steps(roles, np.full(len(each), float(together)), each, None)
    lengths, begun = (axis.reshape(-1) for axis in np.meshgrid(each, starts[1:], indexing="ij"))
    later, rows_later, head_later = pricing.steps(
        roles, np.full(len(lengths), float(together)), lengths, lengths + begun
    )
    shape = (-1, len(tokens), len(starts) - 1)
    after = (later - rows_later - head_later).reshape(shape)
    attention = np.concatenate([(first - rows - head)[:, :, None], after], axis=2)
    return (
        [Curve(tokens, part) for part in rows + head],
        [Surface(tokens, starts, part) for part in attention],
    )


def _moving(
    pricing: Pricing, source: tuple[Roles, int], target: tuple[Roles, int], sequences: int
) -> list[Curve] | None:
    """Of the keys and values of so many sequences, by the tokens of each, from one layout to another, each
    with the new tokens of its steps; None where both have them alike."""
    if source[0] == target[0]:
        return None
    mesh, tokens = pricing.setting.mesh, np.array(grid(_LONGEST, 1), float)
    layouts = [
        resolve(roles, pricing.storage, mesh, sequences, queries) for roles, queries in (source, target)
    ]
    found = pricing.reshard(layouts[0], layouts[1], np.full(len(tokens), float(sequences)), tokens)
    return [Curve(tokens.tolist(), part) for part in found]
