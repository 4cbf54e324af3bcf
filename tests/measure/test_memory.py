"""What XLA says that a compiled step takes is what the cost model says it holds: no more, and 70% of it at
least. Steps are compiled, not run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import pytest

from partita.cost.step import Step, StepOptions, StepShape, price_step
from partita.engine.cpu import BLOCK_FLOATS
from partita.engine.steps import Programs
from partita.measure.launches import Launch, decode_launches, first_draw, ints, prefill_launches
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.sharding.padding import ceil_to, product
from partita.specs.formats import Formats
from partita.specs.model import Model

F32 = Formats(weights="f32", activations="f32", kv="f32")
BF16 = Formats.all_in("bf16")
INT8 = Formats(weights="int8", activations="f32", kv="int8")
QUICK = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}
"""Machine code is never run; which buffers there are is settled before it is made."""

GROUPED: dict[str, Any] = {
    "name": "grouped",
    "layers": 2,
    "d_model": 512,
    "d_ff": 1536,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 64,
    "vocabulary": 8192,
}
MODELS = {
    "grouped": GROUPED,
    "parallel": GROUPED
    | {"kv_heads": 1, "block": "parallel", "feed_forward": "gelu", "d_ff": 2048, "tied_embedding": False},
    "windowed": GROUPED
    | {"kv_heads": 4, "window": 256, "global_period": 2, "post_norms": True, "qk_norm": True},
    "wide": GROUPED | {"d_model": 1024, "d_ff": 4096, "heads": 16, "kv_heads": 4, "vocabulary": 32768},
    "smollm2": GROUPED | {"d_model": 576, "heads": 9, "kv_heads": 3, "vocabulary": 49152},
}


class Case(NamedTuple):
    model: str
    layout: str
    phase: Literal["prefill", "chunk", "decode"]
    batch: int
    queries: int
    context: int = 0
    chips: int = 8
    formats: Formats = F32

    def __str__(self) -> str:
        size = f"{self.batch}x{self.queries}" + (f"@{self.context}" if self.context else "")
        return f"{self.model}-{self.layout}-{self.chips}-{self.phase}-{size}-{self.formats.weights}"


CASES = [
    Case("smollm2", "ws1d/heads", "prefill", 1, 512, chips=1),
    Case("smollm2", "ws1d/heads", "decode", 32, 1, 512, chips=1),
    Case("parallel", "ws1d/heads", "prefill", 8, 128, chips=1),
    Case("wide", "ws1d/heads", "chunk", 1, 128, 2048, chips=1),
    Case("windowed", "ws1d/heads", "prefill", 1, 512, chips=1),
    Case("smollm2", "ws1d/heads", "prefill", 1, 512, chips=1, formats=BF16),
    Case("smollm2", "ws1d/heads", "decode", 32, 1, 512, chips=1, formats=BF16),
    Case("grouped", "ws1d/heads", "prefill", 8, 128, chips=1, formats=INT8),
    Case("grouped", "ws1d/heads", "decode", 8, 1, 2048, chips=1, formats=INT8),
    Case("grouped", "ws1d/heads", "prefill", 8, 128),
    Case("parallel", "ws1d/heads", "prefill", 8, 128),
    Case("grouped", "ws2d/batch", "prefill", 1, 512),
    Case("parallel", "ws2d/batch", "decode", 8, 1, 2048),
    Case("grouped", "ws2d/heads", "decode", 64, 1, 256),
    Case("windowed", "ws2d/context", "chunk", 1, 128, 2048),
    Case("grouped", "wg-xyz/batch", "prefill", 8, 128),
    Case("parallel", "wg-xyz/heads", "prefill", 8, 128),
    Case("grouped", "wg-x/batch", "chunk", 1, 128, 2048),
    Case("grouped", "wg-x/batch", "decode", 8, 1, 2048),
]


def model_of(case: Case) -> Model:
    return Model.model_validate(MODELS[case.model])


def programs_of(case: Case) -> tuple[Programs, Layout]:
    model, mesh = model_of(case), Mesh.of((2, 2, 2) if case.chips == 8 else (1,))
    roles = parse_layout(case.layout, mesh.axes)
    programs = Programs(model, mesh, plan_storage(model, mesh, roles, roles), case.formats)
    return programs, resolve(roles, programs.storage, mesh, case.batch, case.queries)


def launched(case: Case) -> tuple[tuple[Launch, ...], Step]:
    """What generation launches for the step of a case, not yet compiled, and its prediction."""
    programs, layout = programs_of(case)
    size = programs.mesh.size
    batch = ceil_to(case.batch, product(size, layout.batch_axes))
    context = programs.divisible(case.context)
    if case.phase == "prefill":
        launches = prefill_launches(programs, layout, layout, batch, case.queries)
    elif case.phase == "decode":
        launches = decode_launches(programs, layout, batch, context)
    else:
        cache = programs.cache(layout, batch, context, case.queries)
        held, ends = programs.last_logits(layout, batch), jax.ShapeDtypeStruct((), bool)
        counts = *[ints(batch)] * 3, ends
        arguments = (programs.parameters(), cache, held, ints(batch, case.queries), *counts)
        draw = first_draw(programs, layout, layout, batch, context, case.queries)
        launches = (Launch(programs.read(layout), arguments), draw)
    step = price_step(
        programs.model,
        layout,
        size,
        case.formats,
        StepShape(batch, case.queries, context or None),
        StepOptions(run_options=programs.run_options),
    )
    return launches, step


def blocks_of(case: Case) -> int:
    """Bytes of the blocks that XLA's CPU backend turns int8 matrices into floats by, two at most at a time:
    of no other backend, and no part of a prediction."""
    if case.formats.weights != "int8":
        return 0
    model = model_of(case)
    largest = max(model.vocabulary * model.d_model, model.d_model * model.d_ff * model.ffn_inputs)
    return 2 * 4 * min(BLOCK_FLOATS, -(-largest // case.chips) // 2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_step_takes_what_is_predicted(case: Case):
    launches, predicted = launched(case)
    programs = [launch.run.lower(*launch.arguments).compile(compiler_options=QUICK) for launch in launches]
    held = [launch.held_bytes(each) for launch, each in zip(launches, programs, strict=True)]
    print(f"{case}: {held}")
    found = max(held) - predicted.weight_bytes
    expected = predicted.memory_bytes - predicted.weight_bytes  # weights are exact, and would hide much
    print(f"{case}: {found / expected:.3f} of {expected / 1e6:.2f} MB beside weights")
    assert found <= expected + blocks_of(case)
    assert found >= 0.7 * expected
