"""The search: the best pairs of layouts on one cluster, over all layouts, meshes and batches of the space.

Phases are priced apart in tables (`tables.py`); pairs on one storage are then taken in the order of the sum
of their phases, which no pair can beat, and priced exactly until that sum passes what has been found.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from partita.planner.exact import Exact
from partita.planner.nearest import nearest_pair
from partita.planner.pair import Pair, prompts_of
from partita.planner.request import SMALL_CHUNKS, Case
from partita.planner.serving import server
from partita.planner.tables import MOST_CELLS, NEAR, Tables, by_storage, price, with_portions
from partita.specs.model import Model

ALIKE = 5e-4
"""Times no further apart than this part of them are no reason to prefer one layout to a simpler one."""

MOST_EXACT = 160
"""Pairs priced exactly at most; reached only where very many tie."""


@dataclass(frozen=True)
class Searched:
    """A case with what was priced of it, and the best pairs that were found; none where none fits or keeps
    the limits."""

    case: Case
    tables: Tables
    pairs: list[Pair]


def search(case: Case, top: int, cells: int = MOST_CELLS, beat: float = math.inf) -> Searched:
    """The best pairs of a case; `cells` of each phase are priced at most.

    Where prompts may be read whole or in chunks, chunks are priced only if these could be better: a pipeline
    flows better in chunks, a limit may ask for them, or there is no room for all that whole prompts take. To
    read less at a time is never faster otherwise. Where nothing fits in the usual chunks, small ones are
    tried.
    """
    whole = tuple(portion for portion in case.portions if portion.chunk is None)
    chunked = tuple(portion for portion in case.portions if portion.chunk is not None)
    needed = not whole or case.interleaved or case.stages > 1
    tables = price(case, cells, case.portions if needed else whole)
    pairs = best_pairs(tables, top, beat)
    if chunked and not needed:
        best = pairs[0].score(case.request.objective) if pairs else math.inf
        if least_in_chunks(tables) < min(best, beat) - abs(min(best, beat)) * ALIKE or not pairs:
            tables = with_portions(tables, chunked)
            pairs = best_pairs(tables, top, beat)
    if not pairs and beat == math.inf and case.request.auto_chunk:
        shorter = replace(case, chunks=(None, *case.request.shorter(SMALL_CHUNKS)))
        small = [portion for portion in shorter.portions if portion.chunk is not None]
        if small:
            tables = with_portions(tables, small)
            pairs = best_pairs(tables, top, beat)
    if not pairs and beat == math.inf:  # of many that only seem to fit, one may fit that is slow
        nearest = nearest_pair(tables)
        if nearest is not None and nearest.fits and keeps_limits(nearest, case):
            pairs = [nearest]
    return Searched(case, tables, pairs)


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
            setting, sizes = pair.decode.setting, (pair.decode.batch, pair.prefill.batch)
            key = (
                setting.mesh,
                pair.decode.layout,
                pair.prefill.layout,
                *sizes,
                setting.workload.chunk,
            )
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
    """Whether prefill and one decode step stay within the limits, and the rate is sustained. At a rate, the
    first prompt of a prefill batch waits for the others."""
    tpot = pair.tpot_seconds + (pair.chunk_seconds if case.interleaved else 0.0)
    request = case.request
    ttft = pair.ttft_seconds + (0.0 if request.rate is None else pair.fill_seconds(request.rate))
    return (
        (request.max_ttft is None or ttft <= request.max_ttft)
        and (request.max_tpot is None or tpot <= request.max_tpot)
        and (request.rate is None or bool(server(pair, request.traffic).sustains(request.rate)))
    )


def least_in_chunks(tables: Tables) -> float:
    """What no pair can beat whose prompts are read in chunks because there is no room to read one whole.

    Chunks of several prompts that have the tokens of one prompt or more are no faster than fewer prompts
    whole, and take no less memory; fewer tokens than one prompt has are slower than that prompt. So they are
    for decode steps beside which one whole prompt does not fit. `inf` where there are none.
    """
    finite, sizes = np.isfinite(tables.prefill.seconds), np.array(tables.prefill.batches)
    decode_ok, prefill_ok = _usable(tables, finite & (sizes == sizes.min()))
    found = math.inf
    for rows in by_storage(tables):
        for b in range(len(tables.case.batches)):
            each = _Candidates.of(tables, *rows, b, decode_ok, prefill_ok)
            if each is not None:
                lack = ~tables.together(each.decode, b, each.prefill, each.pb).any(axis=1)
                if lack.any():
                    found = min(found, float(each.decode_part[lack].min() + each.prefill_part[0]))
    return found


def _usable(tables: Tables, prefill_fits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[rows, batches] of decode and [rows, portions] of prefill: what can fit and keep its own limit."""
    request = tables.case.request
    decode_ok, prefill_ok = tables.decode_fits, prefill_fits
    if request.max_tpot is not None:
        decode_ok = decode_ok & (tables.decode.last_seconds <= request.max_tpot * (1 + NEAR))
    if request.max_ttft is not None:
        prefill_ok = prefill_ok & (tables.ttft_seconds <= request.max_ttft * (1 + NEAR))
    return decode_ok, prefill_ok


def _pairs_by_least(tables: Tables) -> Iterator[tuple[float, Callable[[], Iterable[Pair]]]]:
    """Pairs on one storage in the order of what their phases take at least."""
    exact = Exact(tables)
    decode_ok, prefill_ok = _usable(tables, tables.prefill_fits)
    heap: list[tuple[float, int, _Candidates, Iterator[tuple[float, int, int]] | None, int, int]] = []
    order = count()
    for decode_rows, prefill_rows in by_storage(tables):
        for b in range(len(tables.case.batches)):
            candidates = _Candidates.of(tables, decode_rows, prefill_rows, b, decode_ok, prefill_ok)
            if candidates is not None:
                heapq.heappush(heap, (candidates.least, next(order), candidates, None, 0, 0))
    while heap:
        least, place, found, rest, i, j = heapq.heappop(heap)
        if rest is None:
            rest = found.ranked(tables)
        else:
            yield least, lambda s=found, i=i, j=j: exact.pairs(s.decode[i], s.b, s.prefill[j], s.pb[j])
        following = next(rest, None)
        if following is not None:
            heapq.heappush(heap, (following[0], place, found, rest, *following[1:]))


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

    @property
    def least(self) -> float:
        """What any two together add to the objective at least."""
        return float(self.decode_part[0] + self.prefill_part[0])

    def ranked(self, tables: Tables) -> Iterator[tuple[float, int, int]]:
        """What two together add at least, and their places, in this order; those that may fit together and
        keep what they have to keep together."""
        case = tables.case
        ok = tables.together(self.decode, self.b, self.prefill, self.pb)
        if case.request.rate is not None:
            seconds = self.decode_seconds[:, None] + self.prefill_seconds[None, :]
            ok &= self.prompts / seconds >= case.request.rate * (1 - NEAR)
        if case.request.max_tpot is not None and case.interleaved:
            ok &= self.steps[:, None] + self.chunks[None, :] <= case.request.max_tpot * (1 + NEAR)
        found = np.argwhere(ok)
        least = self.decode_part[found[:, 0]] + self.prefill_part[found[:, 1]]
        for place in np.argsort(least, kind="stable"):
            yield float(least[place]), int(found[place, 0]), int(found[place, 1])

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
        sizes = np.array([portion.batch for portion in tables.portions])
        prompts = prompts_of(workload, batch)
        usable = np.nonzero((sizes <= prompts) | (sizes == sizes.min()))[0]
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
            free = case.capacity_bytes - held + grows
            first = -free * workload.context / np.maximum(grows, 1e-30)
            second = np.zeros_like(seconds)
        else:
            chips = 1 if case.request.objective == "throughput" else case.cluster.chips
            share = chips / (batch * workload.output)
            first, second = taken * share, seconds * rounds * share
        by_first = _ascending(first, taken, tables.decode.kv_bytes[decode, b])
        by_second = _ascending(second, seconds, tables.prefill.held_bytes[prefill, pb])
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


def _ascending(values: np.ndarray, then: np.ndarray, held: np.ndarray, most: int = 64) -> np.ndarray:
    """Places of the smallest values, in order: the first, and of the others those that hold less than any
    before them."""
    order = np.lexsort((held, then, values))
    least = np.minimum.accumulate(held[order])
    kept = np.arange(len(order)) < most
    kept[1:] |= least[1:] < least[:-1]
    return order[kept]
