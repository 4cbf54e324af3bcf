"""What this machine can do at most, served to `engine.py`: bytes read and floats multiplied a second.

Memory is read by the C library's `memchr` on one thread a core, looking for a byte that is not there.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from peers.serve import Case, Step, serve

READ_BYTES = 128 * 2**20
"""That each thread reads: more than any cache holds."""

MATMUL = 2048


def main() -> None:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def ready(case: Case) -> Step:
        return reading(threads) if case.phase == "memory" else multiplying()

    about = {"version": f"{threads} threads", "memory": threads * READ_BYTES, "matmul": 2 * MATMUL**3}
    serve(ready, about)


def reading(threads: int) -> Step:
    """Reads `READ_BYTES` on each thread."""
    find = ctypes.CDLL(None).memchr
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    buffers = [np.full(READ_BYTES, 1, np.uint8) for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def step() -> None:
        found = list(pool.map(lambda buffer: find(buffer.ctypes.data, 0, READ_BYTES), buffers))
        assert found == [None] * threads

    return step


def multiplying() -> Step:
    """One product of two square float32 matrices on JAX's first device."""
    matrix = jax.numpy.full((MATMUL, MATMUL), 0.01, jax.numpy.float32)
    run = jax.jit(lambda a: a @ a)
    return lambda: run(matrix).block_until_ready()


if __name__ == "__main__":
    main()
