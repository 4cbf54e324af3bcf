"""The full product: every prefill layout with every decode layout, on every mesh, block and kind of heads.

About 20 minutes on two cores; each of the 18 cases of the product stands alone.
"""

from __future__ import annotations

import itertools
import time

import pytest
from tests.combinations import (
    ATTENTION,
    CHOICES,
    FFNS,
    HEADS,
    MESHES,
    Case,
    full_case,
    tiny_model,
)
from tests.engine.bench import F32, Bench

from partita.measure.verify import verify
from partita.sharding import Mesh
from partita.specs.workload import Workload

pytestmark = pytest.mark.full


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block", CHOICES["block"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_pair_of_layouts(
    mesh: tuple[int, ...], block: str, heads: str, capsys: pytest.CaptureFixture[str]
):
    case, start = full_case(mesh, block, heads), time.perf_counter()
    bench, pairs = Bench(case), 0
    for prefill in case.prefills:
        pairs += bench.run_from(prefill)
        with capsys.disabled():
            spent = time.perf_counter() - start
            print(f"{mesh} {block} {heads}: {pairs} pairs in {spent:.0f} s, prefill {prefill}", flush=True)
    assert pairs == len(case.prefills) * len(case.decodes) == 33 * 33


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_pair_where_the_engine_stores_its_weights(mesh: tuple[int, ...]):
    """Each pair of feed-forward layouts on a storage of its own; what moves, as traced."""
    attentions = itertools.cycle(itertools.product(ATTENTION.values(), repeat=2))
    batches, exact = itertools.cycle(CHOICES["batch"]), 0
    for (prefill, decode), attends, batch in zip(
        itertools.product(FFNS, repeat=2), attentions, batches, strict=False
    ):
        layouts = f"{prefill}/{attends[0]}", f"{decode}/{attends[1]}"
        case = Case(tiny_model(), Mesh.of(mesh), batch, (layouts[0],), (layouts[1],))
        pair = case.roles(layouts[0]), case.roles(layouts[1])
        sizes = Workload(prompt=9, output=1, batch=batch, context=14)
        for check in verify(case.model, case.mesh, [pair], F32, sizes, compiled=False):
            assert check.exact, (layouts, check)
            exact += 1
    assert exact == 3 * len(FFNS) ** 2
