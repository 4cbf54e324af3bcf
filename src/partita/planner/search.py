"""The search: the best pairs of layouts on one cluster, over all layouts, meshes and batches of the space.

Phases are priced apart in tables (`tables.py`); pairs on one storage are then taken in the order of the sum
of their phases, which no pair can beat, and priced exactly until that sum passes what has been found.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from partita.planner.exact import Exact
from partita.planner.pair import Pair, prompts_of
from partita.planner.request import Case
from partita.planner.serving import server
from partita.planner.tables import NEAR, Tables
from partita.specs.model import Model

ALIKE = 5e-4
"""Times no further apart than this part of them are no reason to prefer one layout to a simpler one."""

MOST_EXACT = 160
"""Pairs priced exactly at most; reached only where very many tie."""


def best_pairs(tables: Tables, top: int, beat: float = math.inf) -> list[Pair]:
    """The `top` best pairs that fit and keep the limits, and those `ALIKE` to the best; best first.

    Pairs whose score is above `beat` are not looked for.
    """
    case = tables.case
    found: list[tuple[float, int, Pair]] = []
    seen: set[tuple] = set()
    order = count()
    worst = beat
    by_context = case.request.objective == "context"  # whose pairs are dear to price
    most = MOST_EXACT // 8 if by_context else MOST_EXACT
    for least, make in _pairs_by_least(tables):
        # where limits are tight, those that only seem to keep them come first
        alike = found[0][0] + abs(found[0][0]) * ALIKE if found else -math.inf
        if len(seen) >= (most if found else 4 * most) or least > max(worst + abs(worst) * NEAR, alike):
            break
        for pair in make():
            mesh, sizes = pair.decode.setting.mesh, (pair.decode.batch, pair.prefill.batch)
            key = (mesh, pair.decode.layout, pair.prefill.layout, sizes)
            if key in seen:
                continue
            seen.add(key)
            if not pair.fits or not keeps_limits(pair, case):
                continue
            score = float(f"{pair.score(case.request.objective):.9g}")
            found.append((score, next(order), pair))
            found.sort(key=lambda entry: entry[:2])
            if len(found) >= top:
                worst = min(beat, found[top - 1][0])
    alike = found[0][0] + abs(found[0][0]) * ALIKE if found else 0.0
    return [pair for place, (score, _, pair) in enumerate(found) if place < top or score <= alike]


def keeps_limits(pair: Pair, case: Case) -> bool:
    """Whether prefill and one decode step stay within the limits, and the rate is sustained."""
    tpot = pair.tpot_seconds + (pair.chunk_seconds if case.interleaved else 0.0)
    request = case.request
    return (
        (request.max_ttft is None or pair.ttft_seconds <= request.max_ttft)
        and (request.max_tpot is None or tpot <= request.max_tpot)
        and (request.rate is None or bool(server(pair, request.traffic).sustains(request.rate)))
    )


def _pairs_by_least(tables: Tables) -> Iterator[tuple[float, Callable[[], Iterable[Pair]]]]:
    """Pairs on one storage in the order of what their phases take at least."""
    case = tables.case
    exact = Exact(tables)
    decode_ok, prefill_ok = tables.decode_fits, tables.prefill_fits
    if case.request.max_tpot is not None:
        decode_ok = decode_ok & (tables.decode.last_seconds <= case.request.max_tpot * (1 + NEAR))
    if case.request.max_ttft is not None:
        prefill_ok = prefill_ok & (tables.prefill_seconds <= case.request.max_ttft * (1 + NEAR))
    heap: list[tuple[float, int, int, _Candidates, int, int]] = []
    order = count()
    for decode_rows, prefill_rows in by_storage(tables):
        for b, batch in enumerate(case.batches):
            candidates = _Candidates.of(tables, decode_rows, prefill_rows, b, decode_ok, prefill_ok)
            if candidates is not None:
                heapq.heappush(heap, (candidates.least(0, 0), next(order), batch, candidates, 0, 0))
    while heap:
        least, _, batch, candidates, i, j = heapq.heappop(heap)
        if candidates.may_keep_limits(i, j, case):
            yield least, lambda s=candidates, i=i, j=j: exact.pairs(s.decode[i], s.b, s.prefill[j], s.pb[j])
        if j + 1 < len(candidates.prefill):
            heapq.heappush(heap, (candidates.least(i, j + 1), next(order), batch, candidates, i, j + 1))
        if j == 0 and i + 1 < len(candidates.decode):
            heapq.heappush(heap, (candidates.least(i + 1, 0), next(order), batch, candidates, i + 1, 0))


def by_storage(tables: Tables) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every storage that both phases can have, its rows in the table of decode and in that of prefill."""
    groups: list[dict[tuple[int, ...], list[int]]] = [{}, {}]
    for group, table in zip(groups, (tables.decode, tables.prefill), strict=True):
        for row, key in enumerate(map(tuple, table.storage.tolist())):
            group.setdefault(key, []).append(row)
    for key, decode in groups[0].items():
        if key in groups[1]:
            yield np.array(decode), np.array(groups[1][key])


@dataclass(frozen=True)
class _Candidates:
    """Rows of one storage at one decode batch, those of each phase by what they add to the objective."""

    b: int
    decode: np.ndarray  # rows
    decode_part: np.ndarray
    prefill: np.ndarray  # rows
    pb: np.ndarray  # and the place of each's batch
    prefill_part: np.ndarray
    prompts: int
    steps: np.ndarray  # seconds of one decode step
    chunks: np.ndarray  # seconds of one prefill step
    decode_seconds: np.ndarray
    prefill_seconds: np.ndarray  # of all prompts of the batch

    def may_keep_limits(self, i: int, j: int, case: Case) -> bool:
        """Whether the two together may keep what they have to keep together."""
        rate = self.prompts / float(self.decode_seconds[i] + self.prefill_seconds[j])
        if case.request.rate is not None and rate < case.request.rate * (1 - NEAR):
            return False
        if case.request.max_tpot is None or not case.interleaved:
            return True
        return bool(self.steps[i] + self.chunks[j] <= case.request.max_tpot * (1 + NEAR))

    def least(self, i: int, j: int) -> float:
        """What the two together add to the objective at least."""
        return float(self.decode_part[i] + self.prefill_part[j])

    @staticmethod
    def of(
        tables: Tables,
        decode: np.ndarray,
        prefill: np.ndarray,
        b: int,
        decode_ok: np.ndarray,
        prefill_ok: np.ndarray,
    ) -> _Candidates | None:
        case = tables.case
        batch, workload = case.batches[b], case.workload
        decode = decode[decode_ok[decode, b]]
        sizes = np.array(case.prefill_batches)
        prompts = prompts_of(workload, batch)
        usable = np.nonzero((sizes <= prompts) | (sizes == sizes[0]))[0]
        prefill, pb = (part.ravel() for part in np.meshgrid(prefill, usable, indexing="ij"))
        ok = prefill_ok[prefill, pb]
        steps, chunks = tables.decode.last_seconds[decode, b], tables.prefill.last_seconds[prefill, pb]
        if case.interleaved and case.request.max_tpot is not None and len(decode):
            ok &= chunks + steps.min() <= case.request.max_tpot * (1 + NEAR)
        prefill, pb, chunks = prefill[ok], pb[ok], chunks[ok]
        taken, seconds = tables.decode_seconds[decode, b], tables.prefill_seconds[prefill, pb]
        rounds = -(-prompts // sizes[pb])
        if case.request.rate is not None and len(decode) and len(prefill):
            most = prompts / case.request.rate * (1 + NEAR)  # seconds, of both
            quick = (taken + (seconds * rounds).min() <= most, seconds * rounds + taken.min() <= most)
            decode, steps, taken = (part[quick[0]] for part in (decode, steps, taken))
            prefill, pb, chunks, seconds, rounds = (
                part[quick[1]] for part in (prefill, pb, chunks, seconds, rounds)
            )
        if not len(decode) or not len(prefill):
            return None
        if case.request.objective == "latency":
            first, second = taken, seconds
        elif case.request.objective == "context":
            held, kv = tables.decode.held_bytes[decode, b], tables.decode.kv_bytes[decode, b]
            grows = _growing_share(case.model, workload.context) * kv  # all but what windows keep
            free = case.cluster.chip.hbm_bytes - held + grows
            first = -free * workload.context / np.maximum(grows, 1e-30)
            second = np.zeros_like(seconds)
        else:
            chips = 1 if case.request.objective == "throughput" else case.cluster.chips
            share = chips / (batch * workload.output)
            first, second = taken * share, seconds * rounds * share
        by_first, by_second = _ascending(first), _ascending(second, seconds)
        return _Candidates(
            b,
            decode[by_first],
            first[by_first],
            prefill[by_second],
            pb[by_second],
            second[by_second],
            prompts,
            steps[by_first],
            chunks[by_second],
            taken[by_first],
            (seconds * rounds)[by_second],
        )


def _growing_share(model: Model, context: int) -> float:
    """The share of the cache that grows with the context: that of the layers that attend to everything."""
    if model.window is None:
        return 1.0
    whole = model.kv_elements_per_token_layer * context * model.global_layers
    return whole / model.kv_elements(context)


def _ascending(values: np.ndarray, then: np.ndarray | None = None, most: int = 64) -> np.ndarray:
    """Places of the smallest values, in order."""
    return np.lexsort((values if then is None else then, values))[:most]
