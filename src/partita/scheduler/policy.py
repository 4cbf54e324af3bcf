"""In which order work is done, as data: what a step may hold, and what goes first.

The named policies are those of known engines, with their defaults; numbers may be changed by `replace`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from partita.errors import InputError

First = Literal["decode", "prefill"]
Reserve = Literal["prompt", "whole"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a step may hold.

    budget: most tokens of a step, one for each sequence that is decoded in it among them where `together`.
    first: "decode": each step decodes all running sequences, and prompts get what is left of the budget;
        "prefill": prompts are read first, and sequences wait unless `together`.
    together: whether one step reads prompts and decodes; else prompts hold up the sequences, or, decode
        first, wait until all have ended.
    fused: whether both are one pass over the weights (a step of ragged rows) or one program after the other.
    chunked: whether prompts are cut to what the budget leaves; else each is read whole, one that is longer
        than the budget in a step of its own.
    chunk: most tokens of one prompt in a step; None for as many as the budget has.
    quantum: a chunk that does not end its prompt is a multiple of so many tokens.
    readers: most prompts of one step; None for any number.
    reserve: KV memory that a request must find to be admitted: of its prompt (it may be preempted later) or
        of its whole output too (it never is).
    watermark: share of the blocks that admission leaves free, for what is running to grow into.
    paced: whether prompts get only what the limit on the time between tokens leaves, where there is one.
    switches: whether decode changes between the layouts that the driver offers.
    """

    name: str
    budget: int = 2048
    first: First = "decode"
    together: bool = True
    fused: bool = True
    chunked: bool = True
    chunk: int | None = None
    quantum: int = 1
    readers: int | None = None
    reserve: Reserve = "prompt"
    watermark: float = 0.01
    paced: bool = False
    switches: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "chunk", "quantum", "readers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(name, value, "a whole number of at least 1 is accepted")
        if not 0 <= self.watermark < 1:
            raise InputError("watermark", self.watermark, "a share from 0 to less than 1 is accepted")
        if self.chunk is not None and self.chunk < self.quantum:
            raise InputError("chunk", self.chunk, f"must be at least the quantum, {self.quantum}")


POLICIES = {
    policy.name: policy
    for policy in (
        # vLLM V1 (vllm/v1/core/sched/scheduler.py): decodes take their part of max_num_batched_tokens, chunks
        # of prompts the rest; recompute on preemption. 8192 tokens is its default for a server on an H100.
        Policy(name="decode-first", budget=8192),
        # SGLang: a batch of prompts up to chunked_prefill_size (8192 on an H100) goes before decode
        Policy(name="prefill-first", budget=8192, first="prefill", together=False, fused=False),
        # TensorRT-LLM in-flight batching without chunked context: whole prompts beside decode, up to
        # max_num_tokens (8192), admitted when they can run to their end (GUARANTEED_NO_EVICT)
        Policy(name="mixed", budget=8192, chunked=False, reserve="whole", watermark=0.0),
        # Partita: decode first, chunks as large as the limit on the time between tokens allows, and decode in
        # the layout that is best for the sequences there are
        Policy(name="switching", budget=8192, fused=False, paced=True, switches=True),
    )
}


def parse_policy(text: str) -> Policy:
    """A named policy, with another budget after a colon: `decode-first`, `decode-first:2048`.

    Raises InputError (field "policy").
    """
    name, colon, budget = text.strip().partition(":")
    found = POLICIES.get(name)
    if found is None:
        raise InputError("policy", text, f"accepted are {', '.join(POLICIES)}, each with :TOKENS of a step")
    if not colon:
        return found
    if not (budget.isascii() and budget.isdecimal() and 1 <= int(budget[:12]) <= 10**9):
        raise InputError("policy", text, f"the tokens of a step must be a whole number, as in {name}:2048")
    return replace(found, name=text.strip(), budget=int(budget))
