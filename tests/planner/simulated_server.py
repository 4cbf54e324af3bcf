"""A slow simulation of a plan's server that knows no account: it admits prompts, reads them and decodes, and
counts the bytes that are alive on every chip at every turn.

Caches are counted token by token from the model's sizes. What a step holds besides is priced for just that
step, at the tokens it has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from partita.cost.step import StepOptions, StepShape, price_step
from partita.planner import Pair
from partita.sharding.layout import Layout


@dataclass
class Sequence:
    """slot: its place, in decode's layout. tokens: in its cache. end: when it has all of its output."""

    slot: int
    tokens: int
    end: int


@dataclass
class Server:
    """A pair of layouts without pipeline stages, and a queue of requests no longer than its workload says."""

    pair: Pair
    requests: int  # of prompts, a multiple of the prefill batch
    draw: random.Random
    slots: dict[int, Sequence] = field(default_factory=dict)
    reading: list[int] = field(default_factory=list)
    """Tokens read of each prompt, in prefill's layout."""

    def run(self) -> Iterator[int]:
        """The bytes that are alive on the fullest chip, turn after turn."""
        workload = self.pair.decode.setting.workload
        chunk = min(workload.chunk or workload.new_tokens, workload.new_tokens)
        while self.requests or self.slots:
            free = [slot for slot in range(workload.batch) if slot not in self.slots]
            self.draw.shuffle(free)
            count = workload.prefill_batch
            # samples that the slots do not divide have fewer at the end
            if self.requests and (count * workload.samples <= len(free) or not self.slots):
                self.requests -= count
                prompts = [self.draw.randint(workload.prefix + 1, workload.prompt) for _ in range(count)]
                self.reading = [workload.prefix] * count
                while any(read < end for read, end in zip(self.reading, prompts, strict=True)):
                    ends = [min(r + chunk, e) for r, e in zip(self.reading, prompts, strict=True)]
                    self.reading = ends
                    yield self.alive(self.read(chunk, max(ends)))
                    if chunk < workload.new_tokens and self.slots:  # steps come between chunks
                        yield from self.decode()
                for tokens in prompts:
                    for _ in range(min(workload.samples, len(free))):
                        most = min(workload.output, workload.context - tokens)
                        slot = free.pop()
                        self.slots[slot] = Sequence(slot, tokens, tokens + self.draw.randint(1, most))
                self.reading = []
            yield from self.decode()

    def decode(self) -> Iterator[int]:
        for sequence in self.slots.values():
            sequence.tokens += 1
        longest = max(sequence.tokens for sequence in self.slots.values())
        yield self.alive(self.step(self.pair.decode.layout, 1, longest, self.pair.decode.batch))
        self.slots = {n: each for n, each in self.slots.items() if each.tokens < each.end}

    def read(self, queries: int, tokens: int) -> int:
        """Bytes that a prefill step holds beside weights and caches."""
        workload, prefill = self.pair.decode.setting.workload, self.pair.prefill
        whole = queries == workload.new_tokens and not workload.prefix
        context = None if whole else max(tokens, queries)
        return self.step(prefill.layout, queries, context, prefill.batch)

    def step(self, layout: Layout, queries: int, context: int | None, batch: int) -> int:
        setting = self.pair.decode.setting
        shape = StepShape(batch, queries, context)
        step = price_step(setting.model, layout, setting.mesh.size, setting.formats, shape, StepOptions())
        return int(step.activation_bytes)

    def alive(self, activations: int) -> int:
        """Bytes on the fullest chip while a step holds so many."""
        setting, decode, prefill = self.pair.decode.setting, self.pair.decode, self.pair.prefill
        groups = math.prod(setting.mesh.size[axis] for axis in decode.layout.attn_b)
        per_group = -(-setting.workload.batch // groups)
        held = [0] * groups
        for slot, sequence in self.slots.items():
            held[slot // per_group] += self.cache(decode.layout, sequence.tokens)
        groups = math.prod(setting.mesh.size[axis] for axis in prefill.layout.attn_b)
        per_group = -(-setting.workload.prefill_batch // groups)
        read = [0] * groups
        for place, tokens in enumerate(self.reading):
            read[place // per_group] += self.cache(prefill.layout, tokens)
        weights = int(decode.step.weight_bytes)
        return weights + max(held) + max(read) + activations + setting.cluster.chip.runtime_bytes

    def cache(self, layout: Layout, tokens: int) -> int:
        """Bytes on one chip of the cache of one sequence that it has a part of."""
        setting, size = self.pair.decode.setting, self.pair.decode.setting.mesh.size
        model = setting.model
        heads = math.prod(size[axis] for axis in layout.attn_k)
        width = model.head_dim * {"bf16": 2, "f32": 4, "int8": 1}[setting.formats.kv]
        if setting.formats.kv == "int8":
            width += 4  # a scale for every token and head
        places = 0
        for layers, window in ((model.global_layers, None), (model.local_layers, model.window)):
            kept = tokens if window is None else min(tokens, window)
            places += layers * -(-kept // math.prod(size[axis] for axis in layout.attn_s))
        return 2 * -(-model.kv_heads // heads) * width * places
