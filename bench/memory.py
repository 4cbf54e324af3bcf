"""Memory that the engine says it needs beside what it takes: the peak of a whole process, case by case.

Each case is a process of its own. It takes down its resident memory with JAX started and the checkpoint
open, loads the weights, reads the prompt, fills all slots and decodes a few steps; what its peak has grown by
is compared with what `Engine` would have refused to start without. The checkpoints are SmolLM2-135M and
models of random numbers whose parts are large each in turn.

    python bench/memory.py [--only NAME] [--json memory.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conditions import conditions

from partita.engine.drafting import Draft


@dataclass(frozen=True)
class Case:
    """What is loaded, and one request: a prompt, samples of it, and tokens for which there must be room."""

    name: str
    model: dict[str, Any] | None = None
    """Sizes of a random model; None for SmolLM2-135M."""
    mesh: str = "x=1"
    layout: str = "ws2d/batch"
    dtype: str = "f32"
    weights: str | None = None
    kv: str | None = None
    prompt: int = 16
    chunk: int | None = None
    n: int = 1
    max_tokens: int = 64
    steps: int = 3
    """Tokens of each sample that are written."""
    draft: Draft = "auto"
    sampling: dict[str, Any] = field(default_factory=dict)


_WIDE = {"layers": 2, "d_model": 1024, "d_ff": 4096, "heads": 16, "kv_heads": 4, "head_dim": 64}
_VOCABULARY = _WIDE | {"vocabulary": 131_072}
_FAT = _WIDE | {"d_model": 2048, "d_ff": 16_384, "heads": 32, "vocabulary": 4096}

CASES = [
    Case("smollm2"),
    Case("smollm2 64 samples", n=64, max_tokens=1000),
    Case("smollm2 64 samples, int8 cache", kv="int8", n=64, max_tokens=1000),
    Case("smollm2 64 samples, no drafts", n=64, max_tokens=1000, draft="off"),
    Case("smollm2 64 samples, int8 cache, no drafts", kv="int8", n=64, max_tokens=1000, draft="off"),
    Case("smollm2, drafts verified", prompt=256, max_tokens=1000, steps=600, draft="ngram"),
    Case("smollm2 64 samples, bf16", dtype="bf16", n=64, max_tokens=1000),
    Case("smollm2 int8", weights="int8"),
    Case("smollm2 8 devices", mesh="x=8"),
    Case("smollm2 8 devices, 64 samples", mesh="x=8", n=64, max_tokens=1000),
    Case("smollm2 prompt of 4096", prompt=4096),
    Case("smollm2 prompt of 4096 in chunks", prompt=4096, chunk=256),
    Case("vocabulary", _VOCABULARY),
    Case("vocabulary, 64 samples, penalties", _VOCABULARY, n=64, sampling={"presence_penalty": 1.0}),
    Case("vocabulary int8", _VOCABULARY, weights="int8"),
    Case("hidden units", _FAT),
    Case("hidden units int8", _FAT, weights="int8"),
    Case("hidden units bf16", _FAT, dtype="bf16"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose names start so")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(measured(CASES[given.case])))
        return
    found = []
    print(f"{'case':36} {'needed':>9} {'taken':>9} {'taken/needed':>12}  parts, MB")
    for number, case in enumerate(CASES):
        if not case.name.startswith(given.only):
            continue
        command = [sys.executable, __file__, "--case", str(number)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"{case.name}: {run.stderr.strip().splitlines()[-1:]}")
        one = json.loads(run.stdout.splitlines()[-1])
        found.append({"case": asdict(case), **one})
        parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in one["parts"].items() if size)
        share = one["taken"] / one["needed"]
        print(
            f"{case.name:36} {one['needed'] / 1e6:9,.0f} {one['taken'] / 1e6:9,.0f} {share:12.2f}  {parts}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps({"conditions": conditions(None), "cases": found}, indent=2))


def measured(case: Case) -> dict[str, Any]:
    """Bytes that are said to be needed, by part and in all, and that the process's peak grew by."""
    import resource

    from partita.checkpoints.open import open_checkpoint
    from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
    from partita.engine.devices import devices_for
    from partita.engine.engine import Engine
    from partita.engine.load import EngineRequest, placement_on
    from partita.engine.memory import Asked
    from partita.specs.model import Model
    from partita.specs.sampling import Sampling

    if case.model is None:
        checkpoint = open_checkpoint("smollm2-135m")
        _ = checkpoint.tokenizer
    else:
        model = Model(name="random", **case.model)
        checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=0))
    placement = placement_on(case.mesh, case.layout, case.layout)
    _ = [device.id for device in devices_for(placement.mesh.chips)]
    before = _resident()
    formats: dict[str, Any] = {"dtype": case.dtype, "weights": case.weights, "kv": case.kv}
    request = EngineRequest(**formats, chunk=case.chunk, draft=case.draft, force=True)
    engine = Engine.on(checkpoint, placement, request)
    sampling = Sampling(
        max_tokens=case.max_tokens, n=case.n, temperature=1.0, seed=0, ignore_eos=True, **case.sampling
    )
    parts = dict(engine.memory.needed(checkpoint.quantised, Asked((case.prompt,), (sampling,))))
    pieces = engine.written([[1 + i % 100 for i in range(case.prompt)]], [sampling])
    for _ in range(case.steps * case.n):
        next(pieces)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"needed": sum(parts.values()), "taken": peak - before, "parts": parts}


def _resident() -> int:
    """Bytes that this process has now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
