"""How long the first and later starts of `partita generate` take, and how many programs requests compile.

A start is the whole process, its compile cache new or filled by the first. Then one engine answers 100 mixed
requests: what it compiled for the first 50 and for the others, and the slowest call of each. See README.md.

Run: python bench/startup.py [--runs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from commands import time_command
from conditions import conditions
from environments import own_path

MODEL = "smollm2-135m"
START = ("generate", MODEL, "--prompt", "The capital of France is", "--max-tokens", "16")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=5, help="later starts; 5 by default")
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = own_path() | {"PARTITA_CACHE": folder}
        result: dict[str, Any] = {
            "conditions": conditions(None),
            "without a cache": time_command(START, 1, own_path() | {"PARTITA_CACHE": "none"}),
            "first start": time_command(START, 1, kept),
            "later starts": time_command(START, asked.runs, kept),
            "cache_bytes": sum(file.stat().st_size for file in Path(folder).rglob("*-cache")),
        }
    for name in ("without a cache", "first start", "later starts"):
        found = result[name]
        shown = (
            found.get("failed") or f"{found['median_seconds']:.1f} s, CPU {found['median_cpu_seconds']:.1f} s"
        )
        print(f"{name:18} {shown}", flush=True)
    result["mix"] = mixed()
    for half in result["mix"]:
        programs, slowest = half["programs"], half["slowest_seconds"]
        print(f"{half['requests']} mixed requests: {programs} programs, {slowest:.1f} s at most")
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any("failed" in found for found in result.values() if isinstance(found, dict)))


def mixed() -> list[dict[str, Any]]:
    """Programs that each half of 100 calls compiled, and their slowest call."""
    from partita.engine.engine import Engine
    from partita.specs.sampling import Sampling

    engine, random, halves = Engine.load(MODEL), np.random.default_rng(0), []
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.9},
        {"repetition_penalty": 1.1, "logprobs": 5},
    ]
    for _ in range(2):
        before, slowest = engine.programs.traced, 0.0
        for number in range(50):
            prompts = int(random.choice([1, 1, 2, 4]))
            ask = Sampling(
                max_tokens=int(random.integers(1, 17)), n=int(random.integers(1, 3)), **settings[number % 4]
            )
            ids = [random.integers(0, 1000, int(random.integers(1, 200))).tolist() for _ in range(prompts)]
            begun = time.perf_counter()
            engine.complete(ids, ask)
            slowest = max(slowest, time.perf_counter() - begun)
        halves.append(
            {"requests": 50, "programs": engine.programs.traced - before, "slowest_seconds": slowest}
        )
    return halves


if __name__ == "__main__":
    raise SystemExit(main())
