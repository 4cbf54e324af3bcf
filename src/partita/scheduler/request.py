"""A request as the scheduler sees it: how many tokens, whose, how urgent; and how far it has come.

Knows no tokens, texts or times but those that it is given: seconds on whatever clock the driver has.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from partita.errors import InputError

State = Literal["new", "waiting", "reading", "running", "ended"]
Reason = Literal["", "length", "stop", "cancelled", "deadline"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request: it takes one slot while its request is read and while it is written.

    `base`: the decode steps of the scheduler less the tokens that this sequence has in the cache, which does
    not change while it runs. `written`: output tokens, those before the last preemption while it waits (ask
    `Scheduler.written` of one that runs).
    """

    request: Request
    sample: int
    slot: int = -1
    base: int = 0
    end: int = 0  # decode steps of the scheduler after which it has written all that it may
    written: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """What is asked of the scheduler, and what has become of it.

    number: tells requests apart, for whoever drives.
    prompt, output: tokens to be read, and most tokens of each sample to be written; 1 or more.
    samples: sequences written for the prompt, which is read once.
    prefix: first tokens of the prompt that need not be read, since the driver has them cached; less than the
        prompt. They take memory all the same.
    arrival: seconds.
    priority: smaller goes first.
    key: whose it is; keys of one priority get equal shares.
    deadline: seconds on the driver's clock after which nobody waits for it.
    blocks: for reuse, a hash of each full block of the prompt's tokens *and all before it*; may be empty. A
        driver may append those of written tokens' blocks before the request ends, which then can be reused.

    Raises InputError naming the field that is out of range.
    """

    number: int
    prompt: int
    output: int
    samples: int = 1
    prefix: int = 0
    arrival: float = 0.0
    priority: int = 0
    key: Hashable = ""
    deadline: float = inf
    blocks: list[Hashable] = field(default_factory=list)
    # what has become of it
    state: State = "new"
    reason: Reason = ""  # why it has ended
    order: int = -1  # its place among all that came
    shard: int = 0
    length: int = 0  # tokens to be read: the prompt, and what was written before a preemption
    read: int = 0  # of these, those in the cache
    reused: int = 0  # of these, those that were there already
    held: int = 0  # blocks of the prompt that it shares, the first ones
    private: int = 0  # blocks of its own while it is read, or for good where they are reserved
    sequences: tuple[Sequence, ...] = ()
    preemptions: int = 0

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("output", 1), ("samples", 1), ("prefix", 0)):
            if getattr(self, name) < least:
                raise InputError(name, getattr(self, name), f"a whole number of at least {least} is accepted")
        if self.prefix >= self.prompt:
            raise InputError("prefix", self.prefix, f"must be less than the prompt, {self.prompt}")

    @property
    def live(self) -> tuple[Sequence, ...]:
        """Its sequences that have not ended."""
        if len(self.sequences) == 1:
            return () if self.sequences[0].ended else self.sequences
        return tuple(sequence for sequence in self.sequences if not sequence.ended)
