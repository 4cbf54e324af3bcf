"""The search: the best pairs of layouts on one cluster, over all layouts, meshes and batches of the space.

Phases are priced apart in tables (`table.py`); pairs on one storage are then taken in the order of the sum of
their phases, which no pair can beat, and priced exactly until that sum passes what has been found.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np

from partita.cost.prediction import Phase, Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.join import Piece, join, pieces
from partita.planner.pair import Objective, Pair, prompts_of
from partita.planner.space import Ground, classes, cluster_ground, count_rows, mesh_ground, rows
from partita.planner.table import Table, price_table
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles
from partita.specs.cluster import Cluster
from partita.specs.formats import BYTES, Formats
from partita.specs.model import Model
from partita.specs.workload import Workload

MOST_CELLS = 100_000
MOST_ROWS = 20_000
"""Rows x batches, and rows, of one phase; where there are more, a layout may use fewer mesh axes."""
MOST_EXACT = 160
"""Pairs priced exactly at most; reached only where very many tie."""
_NEAR = 1e-9


@dataclass(frozen=True)
class Question:
    """What is asked of the planner for one cluster.

    batches, prefill_batches: those to choose from, ascending. mesh: one the user fixed. Limits in seconds.
    """

    model: Model
    cluster: Cluster
    formats: Formats
    workload: Workload
    batches: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    objective: Objective
    max_ttft: float | None = None
    max_tpot: float | None = None
    mesh: Mesh | None = None

    @cached_property
    def ground(self) -> Ground:
        if self.mesh is not None:
            return mesh_ground(self.mesh, self.cluster)
        return cluster_ground(self.cluster)

    @property
    def new_tokens(self) -> int:
        """Tokens of a prompt that a prefill computes."""
        return self.workload.prompt - self.workload.prefix

    @property
    def tokens_a_chunk(self) -> int:
        """Of a prompt, in one prefill step."""
        return min(self.workload.chunk or self.new_tokens, self.new_tokens)


@dataclass(frozen=True)
class Tables:
    """Both phases of a question priced alone, [rows, batches]."""

    question: Question
    decode: Table
    prefill: Table

    @cached_property
    def decode_seconds(self) -> np.ndarray:
        """Of all output tokens, at least: at the mean context (a step's time is convex in it)."""
        return self.decode.seconds * self.question.workload.output

    @cached_property
    def prefill_seconds(self) -> np.ndarray:
        """Of a whole prompt, at least."""
        return self.prefill.seconds * (self.question.new_tokens / self.question.tokens_a_chunk)

    @cached_property
    def decode_fits(self) -> np.ndarray:
        """Whether weights and the whole cache can fit; true where in doubt."""
        question = self.question
        grown = self.decode.held_bytes
        if question.model.window is None:
            more = question.workload.context / _mean_context(question.workload) - 1
            grown = grown + self.decode.kv_bytes * more
        return np.isfinite(self.decode.seconds) & (grown <= question.cluster.chip.hbm_bytes * (1 + _NEAR))

    @cached_property
    def prefill_fits(self) -> np.ndarray:
        capacity = self.question.cluster.chip.hbm_bytes * (1 + _NEAR)
        return np.isfinite(self.prefill.seconds) & (self.prefill.held_bytes <= capacity)

    @property
    def configurations(self) -> int:
        return self.decode.configurations + self.prefill.configurations


def price(question: Question) -> Tables:
    """Prices every layout of both phases alone."""
    workload, ground = question.workload, question.ground

    def table(phase: Phase, gathered: bool) -> Table:
        kinds = classes(question.model, ground, phase, gathered=gathered)
        decode = phase == "decode"
        batches = question.batches if decode else question.prefill_batches
        counts = rows(ground, len(kinds), most_axes(ground, len(kinds), len(batches)))
        chunked = workload.prefix or question.tokens_a_chunk < question.new_tokens
        seen = workload.prefix + (question.new_tokens + question.tokens_a_chunk) / 2
        return price_table(
            question.model,
            question.cluster.chip,
            ground,
            question.formats,
            phase,
            kinds,
            counts,
            batches,
            queries=1 if decode else question.tokens_a_chunk,
            context=_mean_context(workload) if decode else seen if chunked else None,
        )

    decode = table("decode", False)
    tables = Tables(question, decode, table("prefill", True))
    if _gathering_may_pay(tables):
        tables = replace(tables, decode=table("decode", True))
    return tables


def most_axes(ground: Ground, kinds: int, batches: int) -> int:
    """How many mesh axes of more than one chip a phase may use: all there can be, while rows stay few."""
    most = sum(len(_prime_factors(slot.size)) for slot in ground.slots)
    while most > 2 and count_rows(ground, kinds, most) > min(MOST_ROWS, MOST_CELLS // batches):
        most -= 1
    return max(most, 1)


def _gathering_may_pay(tables: Tables) -> bool:
    """Whether a decode step could gather weights and be the faster for it.

    Gathering over any axis brings every chip at least one more of the shards that it holds: where that alone
    takes longer than the best step without, at every batch, no such layout is worth pricing.
    """
    question = tables.question
    model, ground = question.model, question.ground
    shard = model.layers * model.layer_parameters * BYTES[question.formats.weights] / ground.chips
    least = shard / max(level.bandwidth for level in ground.levels)
    best = np.where(tables.decode_fits, tables.decode.seconds, np.inf).min(axis=0)
    return bool((best > least).any())


def best_pairs(tables: Tables, top: int) -> list[Pair]:
    """The `top` best pairs that fit and keep the limits, best first; of equals the one with fewest axes."""
    question = tables.question
    found: list[tuple[float, int, int, int, Pair]] = []
    seen: set[tuple] = set()
    order = count()
    worst = math.inf
    for bound, make in _pairs_by_bound(tables):
        if len(seen) >= MOST_EXACT or bound > worst + abs(worst) * _NEAR:
            break
        for pair in make():
            mesh, sizes = pair.decode.setting.mesh, (pair.decode.batch, pair.prefill.batch)
            key = (mesh, pair.decode.layout, pair.prefill.layout, sizes)
            if key in seen:
                continue
            seen.add(key)
            if not pair.fits or not keeps_limits(pair, question):
                continue
            score = float(f"{pair.score(question.objective):.9g}")
            unnamed = sum("=" in str(p.layout.roles) for p in (pair.prefill, pair.decode))
            found.append((score, len(mesh.axes), unnamed, next(order), pair))
            found.sort(key=lambda entry: entry[:4])
            if len(found) >= top:
                worst = found[top - 1][0]
    return [entry[-1] for entry in found[:top]]


def keeps_limits(pair: Pair, question: Question) -> bool:
    """Whether prefill and one decode step stay within the limits."""
    return (question.max_ttft is None or pair.ttft_seconds <= question.max_ttft) and (
        question.max_tpot is None or pair.decode.step_seconds <= question.max_tpot
    )


def _pairs_by_bound(tables: Tables) -> Iterator[tuple[float, Callable[[], Iterable[Pair]]]]:
    """Pairs on one storage in the order of what their phases take at least."""
    question = tables.question
    exact = Exact(tables)
    decode_ok, prefill_ok = tables.decode_fits, tables.prefill_fits
    if question.max_tpot is not None:
        decode_ok = decode_ok & (tables.decode.seconds <= question.max_tpot * (1 + _NEAR))
    if question.max_ttft is not None:
        prefill_ok = prefill_ok & (tables.prefill_seconds <= question.max_ttft * (1 + _NEAR))
    heap: list[tuple[float, int, int, _Sums, int, int]] = []
    order = count()
    for _, decode_rows, prefill_rows in _by_storage(tables):
        for b, batch in enumerate(question.batches):
            sums = _Sums.of(tables, decode_rows, prefill_rows, b, decode_ok, prefill_ok)
            if sums is not None:
                heapq.heappush(heap, (sums.bound(0, 0), next(order), batch, sums, 0, 0))
    while heap:
        bound, _, batch, sums, i, j = heapq.heappop(heap)
        yield bound, lambda s=sums, i=i, j=j: exact.pairs(s.decode[i], s.b, s.prefill[j], s.pb[j])
        if j + 1 < len(sums.prefill):
            heapq.heappush(heap, (sums.bound(i, j + 1), next(order), batch, sums, i, j + 1))
        if j == 0 and i + 1 < len(sums.decode):
            heapq.heappush(heap, (sums.bound(i + 1, 0), next(order), batch, sums, i + 1, 0))


def _by_storage(tables: Tables) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray]]:
    """Every storage both phases can have: its rows in either table."""
    groups: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for group, table in zip(groups, (tables.decode, tables.prefill), strict=True):
        for row, key in enumerate(map(tuple, table.storage.tolist())):
            group.setdefault(key, []).append(row)
    for key, decode in groups[0].items():
        if key in groups[1]:
            yield key, np.array(decode), np.array(groups[1][key])


@dataclass(frozen=True)
class _Sums:
    """Rows of one storage at one batch, each phase's by what it adds to the objective."""

    b: int
    decode: np.ndarray  # rows
    decode_part: np.ndarray
    prefill: np.ndarray  # rows
    pb: np.ndarray  # and the place of each's batch
    prefill_part: np.ndarray

    def bound(self, i: int, j: int) -> float:
        return float(self.decode_part[i] + self.prefill_part[j])

    @staticmethod
    def of(
        tables: Tables,
        decode: np.ndarray,
        prefill: np.ndarray,
        b: int,
        decode_ok: np.ndarray,
        prefill_ok: np.ndarray,
    ) -> _Sums | None:
        question = tables.question
        batch, workload = question.batches[b], question.workload
        decode = decode[decode_ok[decode, b]]
        sizes = np.array(question.prefill_batches)
        prompts = prompts_of(workload, batch)
        usable = np.nonzero((sizes <= prompts) | (sizes == sizes[0]))[0]
        prefill, pb = (part.ravel() for part in np.meshgrid(prefill, usable, indexing="ij"))
        ok = prefill_ok[prefill, pb]
        prefill, pb = prefill[ok], pb[ok]
        if not len(decode) or not len(prefill):
            return None
        seconds = tables.prefill_seconds[prefill, pb]
        if question.objective == "latency":
            first, second = tables.decode_seconds[decode, b], seconds
        elif question.objective == "context":
            free = (
                question.cluster.chip.hbm_bytes
                - tables.decode.held_bytes[decode, b]
                + tables.decode.kv_bytes[decode, b]
            )
            per_position = tables.decode.kv_bytes[decode, b] / _mean_context(workload)
            first, second = -free / np.maximum(per_position, 1e-30), np.zeros_like(seconds)
        else:
            share = question.cluster.chips / (batch * workload.output)
            rounds = -(-prompts // sizes[pb])
            first, second = tables.decode_seconds[decode, b] * share, seconds * rounds * share
        by_decode, by_prefill = _ascending(first), _ascending(second, seconds)
        return _Sums(
            b, decode[by_decode], first[by_decode], prefill[by_prefill], pb[by_prefill], second[by_prefill]
        )


def _ascending(values: np.ndarray, then: np.ndarray | None = None, most: int = 64) -> np.ndarray:
    """Places of the smallest values, in order."""
    return np.lexsort((values if then is None else then, values))[:most]


class Exact:
    """Prices pairs of rows as they would run: on one mesh, from one storage, with the cache's switch."""

    def __init__(self, tables: Tables):
        self.tables, self.question = tables, tables.question

    def pairs(self, decode_row: int, b: int, prefill_row: int, pb: int) -> Iterator[Pair]:
        """The pair of two rows; where replicas are more than the batch, also with all of them idle."""
        question, workload = self.question, self.question.workload
        tokens, batch = question.tokens_a_chunk, question.batches[b]
        sizes = {"batch": batch, "prefill_batch": min(question.prefill_batches[pb], batch)}
        for idle in (False, True):
            decode = self._pieces(self.tables.decode, decode_row, batch, 1, workload.context, idle)
            prefill = self._pieces(
                self.tables.prefill, prefill_row, question.prefill_batches[pb], tokens, tokens, idle
            )
            joined = self._join(decode, prefill, sizes)
            if joined is None:  # no mesh of named axes expresses it
                continue
            setting, mine, theirs = joined
            storage = plan_storage(question.model, setting.mesh, mine, theirs)
            yield Pair(
                predict(setting, "prefill", theirs, storage), predict(setting, "decode", mine, storage)
            )
            if not any(not piece.kind.stored and not piece.part for piece in (*decode, *prefill)):
                return

    def alone(self, phase: Phase, row: int, b: int) -> Prediction | None:
        """One phase in its own storage."""
        question, workload = self.question, self.question.workload
        decode = phase == "decode"
        table = self.tables.decode if decode else self.tables.prefill
        tokens = 1 if decode else question.tokens_a_chunk
        batch = table.batches[b]
        found = self._pieces(table, row, batch, tokens, workload.context if decode else tokens)
        sizes = {"batch": batch, "prefill_batch": batch}
        joined = self._join(found, found, sizes)
        return None if joined is None else predict(joined[0], phase, joined[1])

    def _join(
        self, decode: list[Piece], prefill: list[Piece], sizes: dict[str, int]
    ) -> tuple[Setting, Roles, Roles] | None:
        question = self.question
        joined = join(question.ground, decode, prefill, question.cluster.shape, question.mesh)
        if joined is None:
            return None
        sized = resized(question.workload, **sizes)
        setting = Setting(question.model, question.cluster, joined[0], question.formats, sized)
        try:
            _ = setting.peaks
        except InputError:  # its axes cut across those of the machine
            return None
        return setting, joined[1], joined[2]

    def _pieces(
        self, table: Table, row: int, batch: int, queries: int, context: int, idle: bool = False
    ) -> list[Piece]:
        question = self.question
        counts = table.counts[row]
        return pieces(question.model, question.ground, table.kinds, counts, batch, queries, context, idle)


def resized(workload: Workload, **sizes: int) -> Workload:
    """The same workload with other sizes."""
    return Workload(**{**workload.model_dump(), **sizes})


def _mean_context(workload: Workload) -> float:
    """Of a decode step: the prompt and half of what is generated."""
    return workload.prompt + (workload.output + 1) / 2


def _prime_factors(n: int) -> list[int]:
    found, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return found
