"""llama.cpp by llama-cpp-python, served to `bench/engine.py`: a GGUF file as it is or in another format.

The library's own calls, without its sampling: batches are decoded, the last logits searched for the greedy
token. Decode goes on caches from prompts, which are cut back before they grow long.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import ctypes
import os
import tempfile

import llama_cpp as ll
import numpy as np
from serve import Case, Step, serve

GROWTH = 32
"""Tokens that a decode's cache grows by before it is cut back."""

FORMATS = {"f32": 0, "q8_0": 7}
"""`llama_ftype` in llama.h."""

ROWS = 512
"""Tokens of one call of the library."""


class Running:
    """A context for `batch` sequences of `tokens` and what a decode adds."""

    def __init__(self, model, batch: int, tokens: int):
        settings = ll.llama_context_default_params()
        settings.n_ctx = batch * (tokens + GROWTH)
        settings.n_batch = settings.n_ubatch = ROWS
        settings.n_seq_max, settings.kv_unified = batch, False
        settings.n_threads = settings.n_threads_batch = os.cpu_count() or 1
        self.context = ll.llama_init_from_model(model, settings)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
        self.rows = ll.llama_batch_init(ROWS, 0, 1)

    def __del__(self):
        ll.llama_batch_free(self.rows)
        ll.llama_free(self.context)

    def cut(self, tokens: int) -> None:
        ll.llama_memory_seq_rm(ll.llama_get_memory(self.context), -1, tokens, -1)

    def copy(self, sequence: int) -> None:
        """Another sequence gets the cache of the first."""
        ll.llama_memory_seq_cp(ll.llama_get_memory(self.context), 0, sequence, -1, -1)

    def run(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """(sequence, position, token, whether its logits are wanted) of each row -> the greedy tokens."""
        rows = self.rows
        rows.n_tokens = len(tokens)
        for row, (sequence, position, token, wanted) in enumerate(tokens):
            rows.token[row], rows.pos[row], rows.logits[row] = token, position, wanted
            rows.n_seq_id[row], rows.seq_id[row][0] = 1, sequence
        if status := ll.llama_decode(self.context, rows):
            raise RuntimeError(f"llama_decode said {status}")
        return [self._greedy(row) for row, each in enumerate(tokens) if each[3]]

    def _greedy(self, row: int) -> int:
        logits = ll.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def prompt(self, sequence: int, tokens: int) -> None:
        for first in range(0, tokens, ROWS):
            count = min(ROWS, tokens - first)
            self.run([(sequence, first + i, i + 2, first + i == tokens - 1) for i in range(count)])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--gguf", required=True)
    options.add_argument("--format", choices=("as it is", *FORMATS), required=True)
    asked = options.parse_args()
    silent = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.gguf
        if asked.format != "as it is":
            path = os.path.join(folder, "model.gguf")
            convert(asked.gguf, path, asked.format)
        weight_bytes = os.path.getsize(path)  # all of it but names and the tokenizer
        model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp did not load {asked.gguf}")

    def ready(case: Case) -> Step:
        running = Running(model, case.batch, case.tokens)
        if case.phase == "prefill":

            def prefill() -> None:
                running.cut(0)
                for sequence in range(case.batch):
                    running.prompt(sequence, case.tokens)

            return prefill
        running.prompt(0, case.tokens)
        for sequence in range(1, case.batch):
            running.copy(sequence)
        held, tokens = [case.tokens], [1] * case.batch

        def decode() -> None:
            if held[0] >= case.tokens + GROWTH:
                running.cut(case.tokens)
                held[0] = case.tokens
            tokens[:] = running.run([(b, held[0], token, True) for b, token in enumerate(tokens)])
            held[0] += 1

        return decode

    version = f"llama-cpp-python {ll.__version__}"
    serve(ready, {"version": version, "weight_bytes": weight_bytes, "cache_bytes": 2})


def convert(source: str, target: str, format: str) -> None:
    """Writes a GGUF file's tensors in another format; what is quantised becomes floats first."""
    settings = ll.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize, settings.pure = FORMATS[format], True, True
    if ll.llama_model_quantize(source.encode(), target.encode(), settings):
        raise SystemExit(f"llama.cpp did not write {source} in {format}")


if __name__ == "__main__":
    main()
