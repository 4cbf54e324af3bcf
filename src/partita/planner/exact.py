"""Rows of the tables priced as they would run: on one mesh, from one storage, with the cache's switch."""

from __future__ import annotations

from collections.abc import Iterator

from partita.cost.prediction import Prediction, predict
from partita.cost.schedule import microbatches
from partita.cost.setting import Phase, Setting, stage_of
from partita.errors import InputError
from partita.planner.join import Piece, join, pieces
from partita.planner.pair import Pair, prompts_of
from partita.planner.phases import Tables
from partita.planner.table import Table
from partita.sharding.layout import Storage, plan_storage
from partita.sharding.roles import Roles


class Exact:
    """Prices pairs of rows as they would run: on one mesh, from one storage, with the cache's switch."""

    def __init__(self, tables: Tables):
        self.tables, self.case = tables, tables.case
        self._priced: dict[tuple, Prediction] = {}

    def pairs(self, decode_row: int, b: int, prefill_row: int, pb: int) -> Iterator[Pair]:
        """The pair of two rows; where replicas are more than the batch, also with all of them idle."""
        case, workload = self.case, self.case.workload
        tokens, batch = case.tokens_a_chunk, case.batches[b]
        sizes = {
            "batch": batch,
            "prefill_batch": min(case.prefill_batches[pb], prompts_of(workload, batch)),
        }
        prompts = case.prefill_batches[pb]
        for idle in (False, True):
            decode = self._pieces(self.tables.decode, decode_row, batch, 1, workload.context, idle)
            prefill = self._pieces(self.tables.prefill, prefill_row, prompts, tokens, tokens, idle)
            joined = self._join(decode, prefill, sizes)
            if joined is None:  # no mesh of named axes expresses it
                continue
            setting, mine, theirs = joined
            storage = plan_storage(case.model, setting.mesh, mine, theirs)
            yield Pair(
                self._predict(setting, "prefill", theirs, storage),
                self._predict(setting, "decode", mine, storage),
                case.ranked_by,
            )
            if not any(not p.kind.stored and not p.part.strip("kg") for p in (*decode, *prefill)):
                return

    def _predict(self, setting: Setting, phase: Phase, roles: Roles, storage: Storage) -> Prediction:
        """Kept: one phase's layout comes with many of the other's."""
        workload = setting.workload
        key = (phase, setting.mesh, roles, storage, workload.batch, workload.prefill_batch)
        if key not in self._priced:
            self._priced[key] = predict(setting, phase, roles, storage)
        return self._priced[key]

    def alone(self, phase: Phase, row: int, b: int) -> Prediction | None:
        """One phase in its own storage."""
        case, workload = self.case, self.case.workload
        decode = phase == "decode"
        table = self.tables.decode if decode else self.tables.prefill
        tokens = 1 if decode else case.tokens_a_chunk
        batch = table.batches[b]
        found = self._pieces(table, row, batch, tokens, workload.context if decode else tokens)
        sizes = {"batch": batch, "prefill_batch": batch}
        joined = self._join(found, found, sizes)
        return None if joined is None else predict(joined[0], phase, joined[1])

    def _join(
        self, decode: list[Piece], prefill: list[Piece], sizes: dict[str, int]
    ) -> tuple[Setting, Roles, Roles] | None:
        case = self.case
        shape = stage_of(case.cluster, case.stages).shape
        joined = join(case.topology, decode, prefill, shape, case.request.mesh)
        if joined is None:
            return None
        sized = case.workload.resized(**sizes)
        setting = Setting(case.model, case.cluster, joined[0], case.formats, sized, case.stages)
        try:
            _ = setting.peaks
        except InputError:  # its axes cut across those of the machine
            return None
        return setting, joined[1], joined[2]

    def _pieces(
        self, table: Table, row: int, batch: int, queries: int, context: int, idle: bool = False
    ) -> list[Piece]:
        case = self.case
        counts, (_, batch) = table.counts[row], microbatches(batch, case.stages)
        return pieces(case.model, case.topology, table.kinds, counts, batch, queries, context, idle)
