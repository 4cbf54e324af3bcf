"""The paper's figures of merit (Pope et al. 2022, section 2 and the authors' benchmark code)."""

from __future__ import annotations

from partita.cost.ledger import Number


def mfu(parameters: int, tokens: Number, chips: Number, peak_flops: float, seconds: Number) -> Number:
    """Model FLOPs utilisation: 2 N FLOPs a token over what `chips` could do in `seconds` at peak.

    N counts the model's own parameters, not padding; attention's FLOPs are left out, as in the paper.
    """
    return 2 * parameters * tokens / (chips * peak_flops * seconds)


def chip_seconds_per_token(tokens: Number, chips: Number, seconds: Number) -> Number:
    """Cost: chips x seconds over the tokens they process."""
    return chips * seconds / tokens


def context_for_kv_share(capacity_bytes: float, share: float, kv_bytes_per_position: Number) -> Number:
    """Longest context whose KV cache takes at most `share` of a chip's memory (the paper's Table 1: 0.30).

    `kv_bytes_per_position` is what one chip holds for one position of every sequence of the batch.
    """
    return capacity_bytes * share // kv_bytes_per_position
