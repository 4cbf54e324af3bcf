"""Each of the run options on and off: the same logits, and moved bytes and FLOPs as predicted.

Loops are run on rings of 2, 4 and 8 devices, in every kind of layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.combinations import common_storage, tiny_model
from tests.engine.bench import BF16, BF16_SUMS, F32, OWN_SHAPES
from tests.reference import logits as reference_logits
from tests.sizes import full, some

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.engine import Engine
from partita.engine.steps import Programs
from partita.measure.verify import check_decode, check_prefill
from partita.program.options import RunOptions, overlap_of
from partita.sharding import Mesh, parse_layout, resolve
from partita.specs.formats import Formats
from partita.specs.model import Model

MODELS = {
    "parallel multi-query": tiny_model("MQA", block="parallel", layers=1),
    "serial grouped-query": tiny_model("GQA", block="serial", layers=1),
}
CASES = [
    ((2, 2, 2), "ws2d/heads"),
    ((2, 2, 2), "ws2d/batch"),
    ((2, 2, 2), "wg-xyz/heads"),
    ((2, 2, 2), "x=e,y=e,z=f/heads"),
    ((1, 2, 4), "wg-x/batch"),
    ((8, 1, 1), "ws2d/heads"),
    ((8, 1, 1), "ws1d/heads"),
]
OPTIONS = {
    "none": RunOptions(),
    "one way": RunOptions(overlap_of("one-way")),
    "both ways": RunOptions(overlap_of("two-way")),
    "scatters": RunOptions(overlap_of("scatter=two-way")),
    "one": RunOptions(overlap_of("ffn/out/scatter=one-way")),
    "apart": RunOptions(shared_reduction=False),
    "apart and looped": RunOptions(overlap_of("two-way"), shared_reduction=False),
    "summed": RunOptions(scatter_hidden=False),
    "base 2": RunOptions(base2_softmax=True),
}
INT8 = Formats(weights="int8", activations="bf16", kv="int8")
PROMPTS = [[1, 2, 3], list(range(40, 57)), [100], [7, 7, 7, 7, 7, 7, 7, 7]]


def programs_of(model: Model, mesh: Mesh, layout: str, formats: Formats, run_options: RunOptions) -> Programs:
    return Programs(model, mesh, common_storage(model, mesh, layout), formats, run_options=run_options)


@pytest.mark.parametrize("turn", some(1, range(2)))
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
def test_bytes_and_flops_are_as_predicted_with_each_on_and_off(
    shape: tuple[int, int, int], layout: str, turn: int
):
    """A prefill and a decode step; each option in one of the formats, every format in some, and with every
    other layout of the other model; in the full run of both."""
    mesh, seen = Mesh.of(shape), set()
    turns = itertools.cycle(MODELS.values())
    if (CASES.index((shape, layout)) + turn) % 2:
        next(turns)
    for run_options, formats in zip(OPTIONS.values(), itertools.cycle((F32, BF16, INT8, BF16_SUMS))):
        programs = programs_of(next(turns), mesh, layout, formats, run_options)
        found = resolve(parse_layout(layout, mesh.axes), programs.storage, mesh, 8, 16)
        for check in (
            check_prefill(programs, found, found, 8, 16, compiled=False),
            check_decode(programs, found, 8, 32, compiled=False),
        ):
            assert check.exact, (run_options, formats, check.phase, check.predicted, check.counted)
            seen |= {kind for kind, _ in check.counted.messages}
    assert "collective-permute" in seen


@pytest.mark.parametrize("kind", MODELS)
def test_the_compiled_program_moves_what_is_predicted(kind: str):
    mesh, layout = Mesh.of((2, 1, 4)), "ws2d/heads"
    for name in ("one way", "both ways", "apart", "summed"):
        programs = programs_of(MODELS[kind], mesh, layout, F32, OPTIONS[name])
        found = resolve(parse_layout(layout, mesh.axes), programs.storage, mesh, 8, 1)
        assert check_decode(programs, found, 8, 32, compiled=True).exact, name


SOME = {
    "parallel multi-query": ["both ways", "one", "apart", "apart and looped", "base 2"],
    "serial grouped-query": ["none", "one way", "scatters", "summed"],
}
"""Each option in one of the models; halves of a parallel block alone can be summed apart."""


@pytest.mark.parametrize(
    ("kind", "names"), [*SOME.items(), *(full((kind, tuple(OPTIONS))) for kind in MODELS)], ids=str
)
def test_logits_are_the_same_with_each_on_and_off(kind: str, names: Iterable[str]):
    for name, engine, right in engines(kind, "ws2d/heads", names):
        for found, wanted in zip(engine.logits(PROMPTS), right, strict=True):
            assert np.abs(found - wanted).max() < 1e-4, name


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layout", ["ws1d/heads", "wg-x/batch"])
def test_logits_are_the_same_looped_in_other_layouts(layout: str, kind: str):
    for _, engine, right in engines(kind, layout, ["both ways"]):
        for found, wanted in zip(engine.logits(PROMPTS), right, strict=True):
            assert np.abs(found - wanted).max() < 1e-4


@pytest.mark.parametrize("kind", MODELS)
def test_tokens_are_the_same_looped_and_in_base_2(kind: str):
    names = ["none", "both ways", "base 2"]
    found = [engine.generate(PROMPTS, max_tokens=4) for _, engine, _ in engines(kind, "ws2d/heads", names)]
    assert found[1:] == found[:1] * 2


def engines(kind: str, layout: str, names: Iterable[str]) -> Iterator[tuple[str, Engine, list[np.ndarray]]]:
    """Engines with the options of each name, and the reference's logits of the prompts."""
    model, mesh = MODELS[kind], Mesh.of((2, 1, 4))
    parameters, roles = random_parameters(model, seed=3), parse_layout(layout, mesh.axes)
    right = [reference_logits(model, parameters, ids) for ids in PROMPTS]
    for name in names:
        checkpoint = MemoryCheckpoint(model, parameters)
        options = replace(OWN_SHAPES, run_options=OPTIONS[name])
        yield name, Engine(checkpoint, mesh, roles, roles, options=options), right
