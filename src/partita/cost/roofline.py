"""The bound, the paper's roofline at peak, and its figures of merit (Pope et al. 2022, section 2).

A step takes at least the larger of its compute and its memory time, and then its communication, which the
paper adds (appendix A.1). A runtime that hides communication behind the matmuls can at best reach
`overlapped_seconds`; a looped collective einsum counts here as the collective it stands for. What a real chip
reaches is the estimate's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from partita.cost.ledger import Entry, Ledger
from partita.cost.links import Links
from partita.cost.number import Amount, Number
from partita.specs.formats import Formats
from partita.specs.hardware import Chip


@dataclass(frozen=True)
class Peaks:
    """What one chip can do at most, per second."""

    flops: float
    memory_bytes: float
    links: Links


@dataclass(frozen=True)
class Bound:
    """Least seconds of one step, by part."""

    compute_seconds: Number
    weight_seconds: Number
    kv_seconds: Number
    communication_seconds: Number
    link_seconds: Mapping[str, Number]  # communication by the axes of its collectives

    @property
    def memory_seconds(self) -> Number:
        return self.weight_seconds + self.kv_seconds

    @property
    def step_seconds(self) -> Number:
        return np.maximum(self.compute_seconds, self.memory_seconds) + self.communication_seconds

    @property
    def overlapped_seconds(self) -> Number:
        """Seconds with all communication hidden."""
        return np.maximum(np.maximum(self.compute_seconds, self.memory_seconds), self.communication_seconds)

    @property
    def binds(self) -> str:
        """The part that takes longest: "compute", "weights", "kv" or "link:" and the axes of its
        collectives."""
        parts = {"compute": self.compute_seconds, "weights": self.weight_seconds, "kv": self.kv_seconds}
        if self.communication_seconds > max(self.compute_seconds, self.memory_seconds):
            return "link:" + max(self.link_seconds, key=lambda axes: self.link_seconds[axes])
        if self.compute_seconds >= self.memory_seconds:
            return "compute"
        return max(("weights", "kv"), key=lambda part: parts[part])


def peaks(chip: Chip, formats: Formats, links: Links) -> Peaks:
    """The peaks of a chip; raises InputError where it has no figure for this format of activations."""
    return Peaks(chip.peak(formats.activations), chip.hbm_bandwidth, links)


def bound(ledger: Ledger, peaks: Peaks) -> Bound:
    """The bound of one step; what a causal mask throws away needs no time."""
    sent: dict[tuple[str, str], Amount] = {}
    for entry in ledger.entries:
        if entry.axes:
            key = (entry.loop.instead if entry.loop else entry.kind, entry.axes)
            more = entry.sent_bytes if entry.repeat == 1 else entry.sent_bytes * entry.repeat
            sent[key] = sent[key] + more if key in sent else more
    links: dict[str, Number] = {}
    for (kind, axes), size in sent.items():
        seconds = peaks.links.seconds(kind, axes, size)
        links[axes] = links[axes] + seconds if axes in links else seconds
    return Bound(
        compute_seconds=ledger.total("needed_flops") / peaks.flops,
        weight_seconds=ledger.total("weight_bytes") / peaks.memory_bytes,
        kv_seconds=ledger.total("kv_bytes") / peaks.memory_bytes,
        communication_seconds=sum(links.values()),
        link_seconds=links,
    )


def communication_seconds(entry: Entry, peaks: Peaks) -> Number:
    """Seconds of one collective, as `Links.seconds` counts them."""
    kind = entry.loop.instead if entry.loop else entry.kind
    return peaks.links.seconds(kind, entry.axes, entry.sent_bytes)


def mfu(parameters: int, tokens: Number, chips: Number, peak_flops: float, seconds: Number) -> Number:
    """Model FLOPs utilisation as the paper counts it: 2 N FLOPs a token over what `chips` could do in
    `seconds` at peak. `Prediction.mfu` counts what the model needs instead.

    N counts the model's own parameters, not padding; attention's FLOPs are left out.
    """
    return 2 * parameters * tokens / (chips * peak_flops * seconds)


def chip_seconds_per_token(tokens: Number, chips: Number, seconds: Number) -> Number:
    """The cost of a token: chips x seconds over the tokens that they process."""
    return chips * seconds / tokens


def context_for_kv_share(capacity_bytes: float, share: float, kv_bytes_per_position: Number) -> Number:
    """The longest context whose KV cache takes at most `share` of a chip's memory (the paper's Table 1:
    0.30).

    `kv_bytes_per_position` is what one chip holds for one position of every sequence of the batch.
    """
    return capacity_bytes * share // kv_bytes_per_position
