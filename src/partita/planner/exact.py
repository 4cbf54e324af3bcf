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
        self.tables, self.question = tables, tables.question
        self._priced: dict[tuple, Prediction] = {}

    def pairs(self, decode_row: int, b: int, prefill_row: int, pb: int) -> Iterator[Pair]:
        """The pair of two rows; where replicas are more than the batch, also with all of them idle."""
        question, workload = self.question, self.question.workload
        tokens, batch = question.tokens_a_chunk, question.batches[b]
        sizes = {
            "batch": batch,
            "prefill_batch": min(question.prefill_batches[pb], prompts_of(workload, batch)),
        }
        prompts = question.prefill_batches[pb]
        for idle in (False, True):
            decode = self._pieces(self.tables.decode, decode_row, batch, 1, workload.context, idle)
            prefill = self._pieces(self.tables.prefill, prefill_row, prompts, tokens, tokens, idle)
            joined = self._join(decode, prefill, sizes)
            if joined is None:  # no mesh of named axes expresses it
                continue
            setting, mine, theirs = joined
            storage = plan_storage(question.model, setting.mesh, mine, theirs)
            yield Pair(
                self._predict(setting, "prefill", theirs, storage),
                self._predict(setting, "decode", mine, storage),
                question.ranked_by,
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
        shape = stage_of(question.cluster, question.stages).shape
        joined = join(question.topology, decode, prefill, shape, question.mesh)
        if joined is None:
            return None
        sized = question.workload.resized(**sizes)
        setting = Setting(
            question.model, question.cluster, joined[0], question.formats, sized, question.stages
        )
        try:
            _ = setting.peaks
        except InputError:  # its axes cut across those of the machine
            return None
        return setting, joined[1], joined[2]

    def _pieces(
        self, table: Table, row: int, batch: int, queries: int, context: int, idle: bool = False
    ) -> list[Piece]:
        question = self.question
        counts, (_, batch) = table.counts[row], microbatches(batch, question.stages)
        return pieces(question.model, question.topology, table.kinds, counts, batch, queries, context, idle)
