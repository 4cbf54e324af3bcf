"""The estimate: what a step is expected to take, the bound's counts through a profile of efficiencies.

Operations run one after the other. One takes the longer of its arithmetic and its reading from memory:

    arithmetic  (FLOPs + 2 x second operand x half_rows) / (peak x matmul_share)
    memory      (weights + cache + activation_share x activations) / (peak x memory_share)

With m rows the arithmetic reaches matmul_share x m / (m + half_rows) of the peak.

A collective takes, on each level of the fabric that it spans, message_seconds (on a torus for each physical
axis, one after the other) and hop_seconds for every chip beyond the second that a message passes (k - 1 in a
ring of k chips, twice that in an all-reduce). Its bytes go at the level's peak x share: partial sums in the
format that the profile's software sends them in, where that is known, and with own_share of the chip's own
shard, where that is copied too. hidden_share of the bytes' time is hidden behind the operations; of a looped
collective einsum it is looped_share of what can be hidden (`collective_matmul.py`).

Each layer adds layer_seconds, and sequence_seconds for every sequence that a chip attends to (pages of the
cache, positions, sums of split attention: work by sequence, not by byte). The step adds step_seconds.

On a torus a collective has the links of its own axes, not all of the chip: over k of n chips log k / log n of
them. The bound gives it all. An estimate is never below the bound. How far off it may be is in `interval.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from partita.cost.collective_matmul import hidden_seconds, links_used, steps
from partita.cost.ledger import Entry, Ledger
from partita.cost.links import Links
from partita.cost.number import Number
from partita.cost.roofline import Peaks, bound
from partita.specs.formats import BYTES
from partita.specs.profile import Profile


@dataclass(frozen=True)
class StepEstimate:
    """Seconds of one step, by part."""

    operation_seconds: Number
    link_seconds: Mapping[str, Number]  # bytes of collectives on their way, by their axes; none hidden
    latency_seconds: Number  # collectives' messages and hops
    hidden_seconds: Number  # of the link seconds, what goes on behind operations
    layer_seconds: Number  # what no count explains, its part for each sequence included
    host_seconds: float  # once a step
    least_seconds: Number  # the bound

    @property
    def communication_seconds(self) -> Number:
        """What collectives add to the operations."""
        return sum(self.link_seconds.values()) - self.hidden_seconds + self.latency_seconds

    @property
    def device_seconds(self) -> Number:
        """Seconds that the chips of one stage work, without the host's time."""
        found = self.operation_seconds + self.communication_seconds + self.layer_seconds
        return np.maximum(found, self.least_seconds)

    @property
    def step_seconds(self) -> Number:
        return self.device_seconds + self.host_seconds


def estimate(ledger: Ledger, peaks: Peaks, profile: Profile) -> StepEstimate:
    """The estimate of one step of one stage."""
    operations: Number = 0
    links: dict[str, Number] = {}
    latency: Number = 0
    plain: Number = 0  # of the links' seconds, those of no loop
    looped: Number = 0  # hidden in loops
    for entry in ledger.entries:
        if entry.axes:
            seconds = transfer_seconds(entry, peaks.links, profile) * entry.repeat
            links[entry.axes] = links[entry.axes] + seconds if entry.axes in links else seconds
            latency = latency + message_seconds(entry, peaks.links, profile) * entry.repeat
            if entry.loop is None:
                plain = plain + seconds
            else:
                dots = sum(operation_seconds(dot, peaks, profile) * dot.repeat for dot in entry.loop.dots)
                looped = looped + hidden_seconds(entry.loop, seconds, dots)
        else:
            operations = operations + operation_seconds(entry, peaks, profile) * entry.repeat
    hidden = profile.value("hidden_share") * plain + profile.value("looped_share") * looped
    hidden = np.minimum(hidden, operations)
    return StepEstimate(
        operation_seconds=operations,
        link_seconds=links,
        latency_seconds=latency,
        hidden_seconds=hidden,
        layer_seconds=ledger.layers
        * (profile.value("layer_seconds") + profile.value("sequence_seconds") * ledger.sequences),
        host_seconds=profile.value("step_seconds"),
        least_seconds=bound(ledger, peaks).step_seconds,
    )


def operation_seconds(entry: Entry, peaks: Peaks, profile: Profile) -> Number:
    """Seconds of one operation that is no collective."""
    work = entry.flops + 2 * profile.value("half_rows") * entry.second
    read = entry.weight_bytes + entry.kv_bytes + profile.value("activation_share") * entry.moved_bytes
    return np.maximum(
        work / (peaks.flops * profile.value("matmul_share")),
        read / (peaks.memory_bytes * profile.value("memory_share")),
    )


def transfer_seconds(entry: Entry, links: Links, profile: Profile) -> Number:
    """Seconds that the bytes of one collective take; levels work at the same time, as in the bound."""
    found: Number = 0
    span = links.span(entry.axes)
    for index, pace in enumerate(links.paces(entry.kind, entry.axes)):
        level = links.levels[index].kind
        share, own = (profile.link(name, level, entry.kind) for name in ("share", "own_share"))
        if own and entry.kind != "collective-permute":  # beside those for the k - 1 others
            pace = pace * (1 + own / np.maximum(span[index] - 1, 1))
        busy = links.own_links(index, entry.axes)
        if entry.loop is not None:
            busy = busy * links_used(entry.loop, links, index, entry.axes)
        found = np.maximum(found, pace / (share * busy))
    return entry.sent_bytes * _narrowed(entry, profile) * found


def _narrowed(entry: Entry, profile: Profile) -> float:
    """Bytes that the profile's software sends for a byte in the ledger: it has its own format of partial
    sums."""
    return BYTES[profile.reduce] / BYTES[entry.sums] if profile.reduce and entry.sums else 1.0


def message_seconds(entry: Entry, links: Links, profile: Profile) -> Number:
    """Seconds that the start and the hops of one collective take."""
    found: Number = 0
    ways = 2 if entry.kind == "all-reduce" else 1
    for index, (level, chips) in enumerate(zip(links.levels, links.span(entry.axes), strict=True)):
        start = profile.link("message_seconds", level.kind, entry.kind) * (chips > 1)
        if entry.kind == "collective-permute":
            hops = (chips > 1) * 1
        else:
            hops = links.hops(index, entry.axes)
            start = start * links.starts(index, entry.axes)
        found = found + start + profile.link("hop_seconds", level.kind, entry.kind) * hops * ways
    one_by_one = 1 if entry.loop is None else steps(entry.loop)
    return found * one_by_one * (np.asarray(entry.messages) > 0)


def sending_seconds(least_seconds: Number, level: str, profile: Profile) -> Number:
    """Seconds of one message to one other chip, which the links of this level carry in `least_seconds` at
    peak."""
    share, start = (profile.link(name, level, "collective-permute") for name in ("share", "message_seconds"))
    return start + least_seconds / share
