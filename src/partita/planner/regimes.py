"""The three regimes of Pope et al. 2022 (arXiv 2211.05102) as presets of a workload and an objective.

Lengths, batches and formats are the paper's; the model and the cluster are the user's.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.errors import InputError
from partita.planner.pair import Objective
from partita.specs.formats import Format
from partita.specs.wording import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A workload and what is sought in it.

    prompt: tokens, of which the first `prefix` are cached. output: tokens. batch: sequences decoded together,
    prefill_batch: prompts prefilled together. sources: where each figure comes from, by field.
    """

    name: str
    prompt: int
    prefix: int
    output: int
    batch: int
    prefill_batch: int
    objective: Objective
    weights: Format
    kv: Format
    sources: dict[str, str]


_PAPER = "Pope et al. 2022 (arXiv 2211.05102)"
_QUOTED = f"{_PAPER}, in its words as quoted elsewhere"
_SUMMED = f"{_PAPER}, as independent summaries give it"

REGIMES: dict[str, Regime] = {
    regime.name: regime
    for regime in (
        Regime(
            name="interactive",
            prompt=1984,
            prefix=1920,
            output=64,
            batch=64,
            prefill_batch=1,
            objective="latency",
            weights="int8",
            kv="bf16",
            sources={
                "prompt, prefix, output, weights": f"{_QUOTED}: a chatbot reads 64 tokens, consults 1,920 "
                "cached ones and writes 64, in 1.9 s with int8 weights (PaLM 540B, 64 TPU v4 chips)",
                "batch, prefill_batch": f"{_SUMMED}, Table 2, low latency: decode at batch 64, prefill at 1",
                "objective": f"{_SUMMED}: Table 2 calls these low-latency settings",
                "kv": f"{_SUMMED}: int8 is for weights only",
            },
        ),
        Regime(
            name="long-context",
            prompt=32_704,
            prefix=0,
            output=64,
            batch=128,
            prefill_batch=1,
            objective="context",
            weights="bf16",
            kv="bf16",
            sources={
                "batch": f"{_SUMMED}, Table 1: the longest context at batch 128 (43,000 tokens, PaLM 540B, "
                "64 TPU v4 chips, 30% of memory for the cache)",
                "prompt": f"{_SUMMED}, Figure 8: sequences of 32,768 tokens at batch 128; here prompt and "
                "output together",
                "output": f"{_SUMMED}, Table 2: 64 tokens are written",
                "prefill_batch": "ours: no prefill is given for this setting",
                "objective": f"{_SUMMED}, Table 1: the longest context that fits",
                "weights, kv": f"{_SUMMED}: the contexts of Table 1 follow from 2-byte keys and values; the "
                "format of its weights is not known here, bf16 is ours",
            },
        ),
        Regime(
            name="offline",
            prompt=1984,
            prefix=0,
            output=64,
            batch=512,
            prefill_batch=512,
            objective="throughput",
            weights="bf16",
            kv="bf16",
            sources={
                "prompt, output": f"{_SUMMED}: offline inference on 1,984 input and 64 output tokens at 73% "
                "MFU in all (PaLM 540B, 64 TPU v4 chips)",
                "batch, prefill_batch, weights": f"{_SUMMED}, Table 2, high throughput: batch 512 in both "
                "phases, bfloat16",
                "objective": f"{_SUMMED}: Table 2 calls these high-throughput settings",
                "kv": f"{_SUMMED}: int8 is for weights only",
            },
        ),
    )
}
"""The regimes by name."""


def regime(name: str) -> Regime:
    """Raises InputError (field "regime") where it is none of `REGIMES`."""
    found = REGIMES.get(name.strip().lower())
    if found is None:
        hint = did_you_mean(name, REGIMES)
        raise InputError("regime", name, f"unknown; {hint}accepted are {', '.join(REGIMES)}")
    return found
