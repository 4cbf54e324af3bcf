"""The policy by which this server runs its engine, for the loop and for whoever simulates it."""

from __future__ import annotations

from partita.scheduler import Policy


def own_policy(slots: int, chunk: int) -> Policy:
    """Each step decodes all sequences, then reads one chunk of one prompt: those that begin alike come one
    after the other, so that the first is kept when the next begins."""
    return Policy(
        name="serve", budget=slots + chunk, fused=False, chunk=chunk, quantum=chunk, readers=1, watermark=0.0
    )
