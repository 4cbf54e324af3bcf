"""A server to be simulated: a model in its layouts on a cluster; what it holds and what its steps take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.cost.roofline import Peaks
from partita.cost.setting import Setting
from partita.cost.step import StepShape, price_step
from partita.errors import InputError
from partita.scheduler import Capacity
from partita.sharding.layout import Storage, plan_storage, resolve
from partita.sharding.padding import product
from partita.sharding.roles import ATTENTION_NAMES, FFN_NAMES, Roles, parse_roles
from partita.simulation.prices import Basis, DecodePrices, Prices, Pricing, Sizes
from partita.specs.hardware import MEMORY_UTILIZATION

_WORTH = 0.01
"""Share of a decode step that another layout must save, at some number of sequences, to be a choice."""


@dataclass(frozen=True)
class Server:
    """Of `setting` neither the workload nor, for the bound, the profile counts.

    prefill, decode: their roles, on the one storage that they share.
    slots: sequences that are written together.
    context: tokens in the cache of the longest sequence.
    memory_share: part of a chip's memory that weights, activations and the cache may fill.

    Raises InputError for pipeline stages, and (field "memory-share") where not one sequence fits.
    """

    setting: Setting
    prefill: Roles
    decode: Roles
    slots: int
    context: int
    memory_share: float = MEMORY_UTILIZATION

    @cached_property
    def storage(self) -> Storage:
        return plan_storage(self.setting.model, self.setting.mesh, self.decode, self.prefill)

    def capacity(self, budget: int, block: int = 16) -> Capacity:
        """Slots and KV blocks beside the weights and the activations of steps of up to `budget` tokens."""
        setting, chip = self.setting, self.setting.cluster.chip
        layout = resolve(self.decode, self.storage, setting.mesh, self.slots, 1)
        shards = int(product(setting.mesh.size, layout.attn_b))
        slots = -(-self.slots // shards) * shards
        given = setting.model, layout, setting.mesh.size, setting.formats
        step = price_step(*given, StepShape(slots, 1, self.context))
        reading = resolve(self.prefill, self.storage, setting.mesh, 1, budget)
        read = price_step(setting.model, reading, setting.mesh.size, setting.formats, StepShape(1, budget))
        held = step.weight_bytes + max(step.activation_bytes, read.activation_bytes) + chip.runtime_bytes
        left = float(self.memory_share * chip.hbm_bytes - held)
        # a chip has its shard's sequences; of a window it keeps less, so what counts is the longest sequence
        per_token = float(step.kv_bytes) / (slots / shards * self.context)
        blocks = int(left / per_token // block)
        if blocks * block < self.context:
            raise InputError(
                "memory-share",
                self.memory_share,
                f"leaves {max(left, 0) / 1e9:.3g} GB of a chip of {setting.cluster.name} for the cache; one "
                f"sequence of {self.context:,} tokens takes {per_token * self.context / 1e9:.3g} GB",
            )
        # more blocks than all slots can fill are never used
        most = slots // shards * -(-self.context // block)
        return Capacity(
            slots=slots, tokens=self.context, blocks=min(blocks, most), block=block, shards=shards
        )

    def prices(
        self, basis: Basis, budget: int, decode: Iterable[Roles] = (), peaks: Peaks | None = None
    ) -> Prices:
        """Seconds of steps that read up to `budget` tokens, or the longest prompt; `decode`: other layouts
        that decode may change to."""
        pricing = Pricing(self.setting, self.storage, basis, peaks)
        sizes = Sizes(self.slots, max(budget, self.context), self.context)
        return Prices(pricing, self.prefill, [self.decode, *decode], sizes)

    def alternatives(self, basis: Basis) -> list[Roles]:
        """Named decode layouts on the same storage that are faster than this one for some number of sequences
        at half the longest context."""
        setting = self.setting
        pricing = Pricing(setting, self.storage, basis)
        sizes, context = Sizes(self.slots, self.context, self.context), self.context / 2
        counts = sorted({min(2**i, self.slots) for i in range(self.slots.bit_length() + 1)})

        def seconds(roles: Roles) -> np.ndarray:
            decode = DecodePrices(pricing, roles, sizes)
            return np.array([decode(n, n * context) for n in counts])

        others = [
            roles
            for ffn in FFN_NAMES
            for attention in ATTENTION_NAMES
            if (roles := parse_roles(ffn, attention, setting.mesh.axes)) != self.decode
            and plan_storage(setting.model, setting.mesh, roles, self.prefill) == self.storage
        ]
        found, best = [], seconds(self.decode)
        for _ in range(len(others)):
            priced = [(roles, seconds(roles)) for roles in others if roles not in found]
            roles, times = max(priced, key=lambda each: float((1 - each[1] / best).max()))
            if (1 - times / best).max() < _WORTH:
                break
            found.append(roles)
            best = np.minimum(best, times)
        return found
