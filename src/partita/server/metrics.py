"""What the server measures, under vLLM's names where the meaning is the same, so that dashboards for it work.

Names and help texts are those that vLLM 0.32 documents (https://docs.vllm.ai/en/stable/usage/metrics/).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from partita.server.generation import Generation
    from partita.server.loop import EngineLoop

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_RECENT = 1000
"""Requests that percentiles are of."""

_GAUGES = {
    "num_requests_running": (
        "Requests in slots.",
        lambda loop: len(loop.running) - len(loop.scheduler.queue),
    ),
    "num_requests_waiting": ("Requests in the queue.", lambda loop: loop.waiting),
    "kv_cache_usage_perc": (
        "Share of the cache's places that are in use, 0 to 1.",
        lambda loop: loop.scheduler.cached / (loop.capacity.slots * loop.context),
    ),
}
_COUNTERS = {
    "prompt_tokens": "Prompt tokens of requests whose prompt was read.",
    "generation_tokens": "Tokens written.",
    "prompt_tokens_cached": "Prompt tokens that were not read again.",
    "prefix_cache_queries": "Prompt tokens looked up among those kept.",
    "prefix_cache_hits": "Prompt tokens found there.",
    "num_preemptions": "Requests that were sent back to the queue.",
    "admission_rejections": "Requests refused because the queue was full.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _SECONDS),
    "inter_token_latency_seconds": ("Between two tokens of a request.", _SECONDS),
    "request_time_per_output_token_seconds": ("Mean time between two tokens of a request.", _SECONDS),
    "e2e_request_latency_seconds": ("From arrival to the last token.", _SECONDS),
    "request_queue_time_seconds": ("From arrival to when its prompt was begun.", _SECONDS),
    "request_prefill_time_seconds": ("From then to the first token.", _SECONDS),
    "request_decode_time_seconds": ("From the first token to the last.", _SECONDS),
    "request_inference_time_seconds": ("From when its prompt was begun to the last token.", _SECONDS),
    "iteration_tokens_total": ("Tokens read and written in a step.", _TOKENS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Tokens written for a request.", _TOKENS),
    "request_params_n": ("Samples asked for.", (1, 2, 5, 10, 20)),
    "request_params_max_tokens": ("Most tokens asked for.", _TOKENS),
}


class Metrics:
    """Of one engine, labelled `model_name` and `engine`."""

    def __init__(self, model: str, loop: EngineLoop):
        self.registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}

        def made(kind: Any, name: str, text: str, **more: Any) -> Any:
            found = kind(f"vllm:{name}", text, list(labels), registry=self.registry, **more)
            return found.labels(**labels)

        for name, (text, value) in _GAUGES.items():
            made(Gauge, name, text).set_function(lambda value=value: value(loop))
        self.counters = {name: made(Counter, name, text) for name, text in _COUNTERS.items()}
        self.histograms = {
            name: made(Histogram, name, text, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._success = Counter(
            "vllm:request_success",
            "Requests that have ended, by why.",
            [*labels, "finished_reason"],
            registry=self.registry,
        )
        self._labels, self._loop = labels, loop
        self._ttft: deque[float] = deque(maxlen=_RECENT)
        self._tpot: deque[float] = deque(maxlen=_RECENT)
        self._whole: deque[float] = deque(maxlen=100)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)

    def token(self, generation: Generation, now: float) -> None:
        """A request has one more token, at `now` of `time.monotonic`."""
        self.counters["generation_tokens"].inc()
        if generation.first:
            if generation.sampling.n == 1:
                self.histograms["inter_token_latency_seconds"].observe(now - generation.last)
        else:
            generation.first = now
            prompt, reused = len(generation.ids), generation.reused
            self._ttft.append(now - generation.came)
            self.histograms["time_to_first_token_seconds"].observe(now - generation.came)
            self.counters["prompt_tokens"].inc(prompt)
            self.counters["prefix_cache_queries"].inc(prompt)
            self.counters["prefix_cache_hits"].inc(reused)
            self.counters["prompt_tokens_cached"].inc(reused)
        generation.last = now

    def stepped(self, tokens: int) -> None:
        self.histograms["iteration_tokens_total"].observe(tokens)

    def rejected(self) -> None:
        self.counters["admission_rejections"].inc()

    def ended(self, generation: Generation, reason: str) -> None:
        """A request is over: `stop`, `length`, `abort` or `error`."""
        self._success.labels(**self._labels, finished_reason=reason).inc()
        if not generation.first:
            return
        seen, first, last = self.histograms, generation.first, generation.last
        each = generation.tokens // generation.sampling.n
        seen["request_prompt_tokens"].observe(len(generation.ids))
        seen["request_generation_tokens"].observe(generation.tokens)
        seen["request_params_n"].observe(generation.sampling.n)
        seen["request_params_max_tokens"].observe(generation.sampling.max_tokens)
        seen["request_queue_time_seconds"].observe(generation.began - generation.came)
        seen["request_prefill_time_seconds"].observe(first - generation.began)
        seen["request_decode_time_seconds"].observe(last - first)
        seen["request_inference_time_seconds"].observe(last - generation.began)
        seen["e2e_request_latency_seconds"].observe(last - generation.came)
        self._whole.append(last - generation.came)
        if each > 1:
            seen["request_time_per_output_token_seconds"].observe((last - first) / (each - 1))
            self._tpot.append((last - first) / (each - 1))

    def seconds_for(self, waiting: int) -> int:
        """When a queue of so many has probably become shorter: from 1 to 60 seconds."""
        mean = float(np.mean(self._whole)) if self._whole else 1.0
        return int(min(60, max(1, mean * waiting / self._loop.capacity.slots)))

    def measured(self) -> dict[str, Any]:
        """Percentiles of the last requests, in seconds; None where there was none."""
        return {
            name: {f"p{share}": float(np.percentile(seen, share)) for share in (50, 95, 99)} if seen else None
            for name, seen in (("ttft_seconds", self._ttft), ("tpot_seconds", self._tpot))
        } | {"requests": len(self._ttft), "at": time.time()}
