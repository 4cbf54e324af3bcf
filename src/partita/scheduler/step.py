"""What a scheduler asks for: one step of whoever drives it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from partita.scheduler.request import Request


class Read(NamedTuple):
    """The next `tokens` of a prompt, from `start` on; `ends` where they are its last, and its sequences begin
    in their slots. Of a preempted request what each sequence had written is read after the prompt."""

    request: Request
    start: int
    tokens: int
    ends: bool


@dataclass(slots=True)
class Step:
    """What is to be done next, in this order: requests that were preempted and blocks that were evicted are
    forgotten, the cache is moved where `moves`; then prompts are read, and all `Scheduler.running` sequences
    decoded where `decode` is not 0, in any order or in one."""

    reads: list[Read] = field(default_factory=list)
    decode: int = 0  # sequences
    preempted: list[Request] = field(default_factory=list)
    evicted: list[Hashable] = field(default_factory=list)  # blocks that can no longer be reused
    layout: int = 0
    moves: bool = False

    def __bool__(self) -> bool:
        return bool(self.reads or self.decode)

    @property
    def read_tokens(self) -> int:
        return sum(read.tokens for read in self.reads)
