"""Runs a case of the matrix: every program compiled once and counted, every pair of layouts run and compared.

The steps and draws are those that generation launches. Beside the check of each phase, every one of them is
compiled, and counted in its HLO, on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np
from tests import reference
from tests.combinations import Case
from tests.sizes import many

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.cost.ledger import Ledger
from partita.cost.step import StepOptions, StepShape, price_cache_reshard, price_first_draw, price_step
from partita.engine.cache import Cache
from partita.engine.engine import EngineOptions
from partita.engine.parameters import place
from partita.engine.shapes import Capacity
from partita.engine.steps import Programs
from partita.measure.counts import count_hlo, count_jaxpr, predicted
from partita.measure.launches import decode_launches, ints, prefill_launches
from partita.measure.verify import Check, check_cache_reshard, check_decode, check_prefill
from partita.program.transformer import logits_sharding
from partita.sharding.layout import Layout, resolve
from partita.sharding.padding import ceil_to, product
from partita.specs.formats import Formats

TOLERANCE = 1e-4
STEPS = 3
"""Decode steps of every pair, after the token that prefill gives."""

QUICK: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_parallel_codegen_split_count": "1",
}
"""Each program runs a few times, so compiling it is what takes time. Collectives stay what they are."""
if jax.__version_info__ < (0, 11):  # a choice that later releases no longer offer
    QUICK["xla_cpu_use_fusion_emitters"] = False

OWN_SHAPES = EngineOptions(capacity=Capacity(1, 1))
"""Steps in the shapes of the requests: fewer are compiled than for any mix within a capacity."""

F32 = Formats(weights="f32", activations="f32", kv="f32")
BF16 = Formats(weights="bf16", activations="bf16", kv="bf16")
BF16_SUMS = Formats(weights="bf16", activations="bf16", kv="bf16", reduce="bf16")
_LENGTHS = (5, 11, 1, 8, 3, 7, 2, 9)


def replicas_agree(array: jax.Array) -> np.ndarray:
    """The whole array on the host; devices that hold the same part of it must hold the same bits."""
    whole = np.empty(array.shape, array.dtype)
    first: dict[str, bytes] = {}
    for shard in array.addressable_shards:
        part = np.asarray(shard.data)
        assert first.setdefault(str(shard.index), part.tobytes()) == part.tobytes(), shard.index
        whole[shard.index] = part
    return whole


class Expected:
    """What the reference says of some prompts: greedy tokens, the logits they came from, the cache."""

    def __init__(self, case: Case, parameters: Mapping[str, np.ndarray], prompts: list[list[int]]):
        model, count = case.model, STEPS + 1
        self.tokens = np.zeros((count, len(prompts)), int)
        self.logits = np.zeros((count, len(prompts), model.vocabulary))
        longest = max(len(ids) for ids in prompts) + STEPS
        self.kv = np.zeros((model.layers, 2, len(prompts), longest, model.kv_heads, model.head_dim))
        self.length = np.array([len(ids) for ids in prompts])
        for row, ids in enumerate(prompts):
            self.tokens[:, row] = reference.greedy(model, parameters, ids, count)
            through = [*ids, *self.tokens[:-1, row]]
            self.logits[:, row] = reference.logits(model, parameters, through)[len(ids) - 1 :]
            self.kv[:, :, row, : len(through)] = reference.kv(model, parameters, through).transpose(
                0, 2, 1, 3, 4
            )

    def compare_step(self, step: int, tokens: np.ndarray, logits: np.ndarray) -> None:
        rows, vocabulary = self.logits.shape[1:]
        off = abs(logits[:rows, 0, :vocabulary] - self.logits[step]).max()
        assert off < TOLERANCE, f"logits of step {step} are {off:.2g} from the reference's"
        assert tokens[:rows].tolist() == self.tokens[step].tolist()

    def compare_cache(self, cache: np.ndarray, steps: int) -> None:
        """`cache` [layers, 2, B, S, K, D] after the prompts and `steps` more tokens."""
        _, _, rows, _, heads, _ = self.kv.shape
        filled = min(self.length.max() + steps, cache.shape[3])
        found = cache[:, :, :rows, :filled, :heads] - self.kv[:, :, :, :filled]
        held = np.arange(filled) < self.length[:, None] + steps
        off = abs(found).max(axis=(0, 1, 4, 5))[held].max()
        assert off < TOLERANCE, f"the cache is {off:.2g} from the reference's"


class Bench:
    """A case ready to run: weights placed, the reference computed, steps compiled as they are asked for."""

    def __init__(self, case: Case):
        self.case, mesh = case, case.mesh
        parameters = random_parameters(case.model, seed=len(case.prefills))
        self.programs = Programs(case.model, mesh, case.stored, F32)
        # every other step, and each in the full run, is also traced in bfloat16, with sums in float32 and in
        # bfloat16 by turns
        plain = [Programs(case.model, mesh, case.stored, formats) for formats in (BF16, BF16_SUMS)]
        self.plain = itertools.cycle(plain if many(1) > 1 else [plain[0], None, plain[1], None])
        self.parameters = place(self.programs, MemoryCheckpoint(case.model, parameters))

        random = np.random.default_rng(case.batch)
        lengths = [max(1, case.longest * n // max(_LENGTHS)) for n in _LENGTHS[: case.batch]]
        lengths[-1] = case.longest
        prompts = [random.integers(case.model.vocabulary, size=n).tolist() for n in lengths]
        self.expected = Expected(case, parameters, prompts)
        self.prefills = {name: self._resolve(name, max(lengths)) for name in case.prefills}
        self.decodes = {name: self._resolve(name, 1) for name in case.decodes}

        layouts = [*self.prefills.values(), *self.decodes.values()]
        over_batch = {axis for layout in layouts for axis in layout.batch_axes}
        over_tokens = {axis for layout in self.prefills.values() for axis in layout.query_axes}
        over_cache = {axis for layout in layouts for axis in layout.attn_s}
        self.rows = ceil_to(case.batch, product(mesh.size, "".join(over_batch)))
        whole = product(mesh.size, "".join(over_cache))
        self.width = ceil_to(max(lengths), product(mesh.size, "".join(over_tokens | over_cache)))
        self.capacity = ceil_to(max(max(lengths) + STEPS, self.width) + 2, whole)
        self.tokens = np.zeros((self.rows, self.width), np.int32)
        self.lengths = np.ones(self.rows, np.int32)
        for row, ids in enumerate(prompts):
            self.tokens[row, : len(ids)], self.lengths[row] = ids, len(ids)
        self.prefill_step, self.decode_step = cache(self._prefill_step), cache(self._decode_step)
        self.reshard_steps: dict[tuple[str, str], Any] = {}
        self.first_draws: dict[tuple[str, str], Any] = {}

    def _resolve(self, name: str, queries: int) -> Layout:
        return resolve(self.case.roles(name), self.case.stored, self.case.mesh, self.case.batch, queries)

    # -- the compiled steps, each verified once -----------------------------------------------------------

    def _prefill_step(self, layout: Layout) -> Any:
        if (programs := next(self.plain)) is not None:
            _exact(check_prefill(programs, layout, layout, self.rows, self.width, compiled=False))
        step = price_step(
            self.case.model,
            layout,
            self.case.mesh.size,
            F32,
            StepShape(self.rows, self.width),
            StepOptions(sampler=None),
        )
        args = self.programs.parameters(), ints(self.rows, self.width), ints(self.rows)
        return self._compile("prefill", layout, self.programs.prefill(layout), args, step.ledger)

    def first_draw(self, source: Layout, target: Layout) -> Any:
        """The first token of every sequence; layouts whose logits lie alike share it."""
        key = logits_sharding(source), logits_sharding(target)
        if key not in self.first_draws:
            launch = prefill_launches(self.programs, source, target, self.rows, self.width)[1]
            size = self.case.mesh.size
            ledger = price_first_draw(self.case.model, source, target, size, F32, batch=self.rows)
            run = self._compile("first draw", target, launch.run, launch.arguments, ledger)
            self.first_draws[key] = run, launch.arguments[2:]
        return self.first_draws[key]

    def _decode_step(self, layout: Layout) -> Any:
        """The step, the draw and what that is given beside logits."""
        if (programs := next(self.plain)) is not None:
            _exact(check_decode(programs, layout, self.rows, self.capacity, compiled=False))
        size, sent = self.case.mesh.size, []
        for sampler in (None, "greedy"):
            step = price_step(
                self.case.model,
                layout,
                size,
                F32,
                StepShape(self.rows, 1, self.capacity),
                StepOptions(sampler=sampler),
            )
            sent.append(step.ledger.entries)
        launches = decode_launches(self.programs, layout, self.rows, self.capacity)
        ledgers = Ledger(sent[0]), Ledger(sent[1][len(sent[0]) :])
        runs = [
            self._compile("decode", layout, launch.run, launch.arguments, ledger)
            for launch, ledger in zip(launches, ledgers, strict=True)
        ]
        return *runs, launches[1].arguments[1:]

    def reshard_step(self, source: Layout, target: Layout) -> Any:
        """The step from one cache to another; layouts whose caches lie alike share it."""
        key = source.cache, target.cache
        if key not in self.reshard_steps:
            if (programs := next(self.plain)) is not None:
                sizes = self.rows, self.width, self.capacity
                _exact(check_cache_reshard(programs, source, target, *sizes, compiled=False))
            run = self.programs.reshard_cache(source, target, self.capacity)
            held = self.programs.cache(source, self.rows, self.width)
            args = held, ints(self.rows)
            ledger = price_cache_reshard(
                self.case.model, source, target, self.case.mesh.size, F32, StepShape(self.rows, self.width)
            )
            self.reshard_steps[key] = self._compile("switch", target, run, args, ledger)
        return self.reshard_steps[key]

    def _compile(self, phase: str, layout: Layout, run: Any, args: tuple, ledger: Ledger) -> Any:
        mesh = self.case.mesh
        traced = run.trace(*args)
        compiled = traced.lower().compile(compiler_options=QUICK)
        in_hlo = count_hlo(compiled.as_text(), mesh.axes, mesh.sizes)
        counted = count_jaxpr(traced.jaxpr, mesh.size)
        _exact(Check(str(layout.roles), phase, predicted(ledger, mesh.size), counted, in_hlo))
        return compiled

    # -- running ------------------------------------------------------------------------------------------

    def run_prefill(self, name: str) -> tuple[jax.Array, Cache]:
        """Logits and cache of the prompts under one layout, the cache compared with the reference's."""
        logits, kv = self.prefill_step(self.prefills[name])(self.parameters, self.tokens, self.lengths)
        self._compare_cache(kv, self.prefills[name], steps=0)
        return logits, kv

    def run_decode(self, logits: jax.Array, kv: Cache, prefill: str, decode: str) -> None:
        """Goes on from a prefill under another layout: every step's logits and tokens, and the last cache."""
        source, target = self.prefills[prefill], self.decodes[decode]
        draw, given = self.first_draw(source, target)
        tokens = draw(logits, np.arange(self.rows, dtype=np.int32), *_zeros(given)).tokens
        self.expected.compare_step(0, replicas_agree(tokens), replicas_agree(logits))
        cache = self.reshard_step(source, target)(kv, self.lengths)
        positions = self.lengths
        step, draw, given = self.decode_step(target)
        for number in range(1, STEPS + 1):
            logits, positions, cache = step(self.parameters, cache, tokens, positions)
            tokens = draw(logits, *_zeros(given)).tokens
            self.expected.compare_step(number, replicas_agree(tokens), replicas_agree(logits))
        self._compare_cache(cache, target, steps=STEPS)

    def _compare_cache(self, cache: Cache, layout: Layout, steps: int) -> None:
        """Position p lies with chip p mod n; chips count their first axis first, arrays their last."""
        shards = [self.case.mesh.size[axis] for axis in layout.attn_s]
        pairs = [[replicas_agree(part.value) for part in pair] for pair in cache]
        # [layers, 2, B, S, K, D], S chip by chip
        held = np.array([[np.moveaxis(k, 3, 1), np.moveaxis(v, 2, 1)] for k, v in pairs])
        turns = np.arange(math.prod(shards)).reshape(shards[::-1]).T.ravel()
        order = np.concatenate([np.arange(turn, held.shape[3], len(turns)) for turn in turns])
        positions = np.empty_like(held)
        positions[:, :, :, order] = held
        self.expected.compare_cache(positions, steps)

    def run_from(self, prefill: str) -> int:
        """One prefill layout, and the case's decode layouts after it; how many these are."""
        with _named(f"prefill {prefill} on {self.case.mesh}"):
            logits, kv = self.run_prefill(prefill)
        decodes = self.case.decodes_after(prefill)
        for decode in decodes:
            with _named(f"prefill {prefill}, then decode {decode} on {self.case.mesh}"):
                self.run_decode(logits, kv, prefill, decode)
        return len(decodes)

    def run_all(self) -> int:
        """Every pair of the case; how many these are."""
        return sum(self.run_from(prefill) for prefill in self.prefills)


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def _exact(check: Check) -> None:
    assert check.exact, (
        f"{check.phase} {check.layout}:\npredicted {check.predicted}\ntraced    {check.counted}\n"
        f"compiled  {check.compiled}"
    )


def _zeros(given: tuple) -> tuple:
    """Something of the shapes of what a draw of the likeliest tokens is given and does not look at."""
    return jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), given)
