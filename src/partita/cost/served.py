"""Continuous batching in closed form: seconds between two tokens of a request, of a server with steady load.

A fixed number of clients each send a request and, when it is answered, the next one. While a request is
written, each of the others is prefilled about once, and its prefill holds everybody up:

    seconds per token = decode step of all sequences + sequences / output tokens x one request's prefill

(the form published with the measurements in specs/catalogue/profiles/h100.measured.csv). All `concurrency`
requests are written at once, or as many as the memory holds; the cache of each is taken at its mean over the
request, the prompt and half of the output. Chunked prefill moves the same work into other steps.

There are no queues here, and so no time to the first token; nor are there arrivals that are not steady.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cost.estimate import estimate
from partita.cost.ledger import Ledger
from partita.cost.number import Number
from partita.cost.roofline import Peaks, bound
from partita.cost.setting import Setting
from partita.cost.step import Step, StepShape, price_step
from partita.errors import InputError
from partita.sharding.layout import plan_storage, resolve
from partita.sharding.roles import Roles
from partita.specs.formats import Format
from partita.specs.hardware import MEMORY_UTILIZATION
from partita.specs.profile import Profile


@dataclass(frozen=True)
class Load:
    """What the clients do: requests of `prompt` tokens, each answered with `output`, `concurrency` at a time.

    Arrays describe as many loads.
    """

    prompt: Number
    output: Number
    concurrency: Number


@dataclass(frozen=True)
class Served:
    """A model in one layout under a load; of `setting` neither the workload nor the profile counts.

    `multiply` is the format of matmuls' operands where the server quantises activations too; by default it is
    that of the activations. 8-bit floats have the bytes and the peak of "int8". Raises InputError where
    there are pipeline stages, or not even one sequence fits the memory.
    """

    setting: Setting
    roles: Roles
    load: Load
    multiply: Format | None = None

    @cached_property
    def sequences(self) -> Number:
        """Sequences that are written at once: the clients', or as many as `MEMORY_UTILIZATION` of the memory
        holds."""
        wanted, chip = self.load.concurrency, self.setting.cluster.chip
        step = self._decode_step(wanted)
        held = chip.runtime_bytes + step.weight_bytes + step.activation_bytes
        left = chip.usable_bytes(MEMORY_UTILIZATION) - held
        found = np.minimum(wanted, np.floor(left * wanted / step.kv_bytes))
        if np.any(found < 1):
            raise InputError(
                "concurrency", wanted, f"not one sequence fits the memory of {self.setting.cluster.name}"
            )
        return found

    @cached_property
    def decode(self) -> Step:
        """The step that writes one token for every sequence."""
        return self._decode_step(self.sequences)

    @cached_property
    def prefill(self) -> Step:
        """The step that reads the prompt of one request."""
        return self._step(1, self.load.prompt, None)

    @cached_property
    def peaks(self) -> Peaks:
        peaks = self.setting.peaks
        return replace(peaks, flops=self.setting.cluster.chip.peak(self.multiply)) if self.multiply else peaks

    def estimated_peaks(self, profile: Profile) -> Peaks:
        """Peaks of which the profile's shares are meant: 8-bit operands reach a share of their own."""
        share = "int8_matmul_share"
        if self.multiply != "int8" or share not in profile.constants:
            return self.peaks
        flops = self.peaks.flops * profile.value(share) / profile.value("matmul_share")
        return replace(self.peaks, flops=flops)

    def bound_seconds(self) -> Number:
        """Seconds between two tokens of a request, at peak."""
        return self._seconds(*(bound(ledger, self.peaks).step_seconds for ledger in self._ledgers))

    def estimated_seconds(self, profile: Profile) -> Number:
        """Seconds between two tokens of a request, with the efficiencies of a profile; never below the
        bound."""
        peaks = self.estimated_peaks(profile)
        found = self._seconds(*(estimate(ledger, peaks, profile).step_seconds for ledger in self._ledgers))
        return np.maximum(found, self.bound_seconds())

    @property
    def _ledgers(self) -> tuple[Ledger, Ledger]:
        return self.decode.ledger, self.prefill.ledger

    def _seconds(self, decode: Number, prefill: Number) -> Number:
        return decode + self.sequences / self.load.output * prefill

    def _decode_step(self, sequences: Number) -> Step:
        return self._step(sequences, 1, self.load.prompt + self.load.output // 2)

    def _step(self, batch: Number, queries: Number, context: Number | None) -> Step:
        """A step; where there are several loads, the smallest decides how the layout splits tokens."""
        setting = self.setting
        if setting.stages != 1:
            raise InputError("stages", setting.stages, "a served load is priced without pipeline stages")
        storage = plan_storage(setting.model, setting.mesh, self.roles, self.roles)
        layout = resolve(self.roles, storage, setting.mesh, int(np.min(batch)), int(np.min(queries)))
        return price_step(
            setting.model, layout, setting.mesh.size, setting.formats, StepShape(batch, queries, context)
        )
