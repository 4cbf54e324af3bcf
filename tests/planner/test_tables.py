"""What the vectorised passes say of a row is what pricing its layout alone says."""

import random

import numpy as np
import pytest
from tests.planner.drawn import a_case
from tests.sizes import some

from partita.planner.exact import Exact
from partita.planner.passes import Pricing, Table, passes, price_table
from partita.planner.space import Space, axis_roles, cluster_topology, rows
from partita.planner.tables import Tables, price
from partita.specs import Formats, catalogue_model, parse_cluster
from partita.specs.profile import Phase

CLOSE = {"rel": 1e-9, "abs": 0}


def cells(tables: Tables, phase: Phase, seed: int, most: int) -> list[tuple[Table, np.ndarray, int, int]]:
    """Some of the layouts of a phase at some batch: its table, the seconds of the whole phase, row, batch."""
    table = getattr(tables, phase)
    seconds = getattr(tables, f"{phase}_seconds")
    legal = np.argwhere(np.isfinite(table.seconds)).tolist()
    return [(table, seconds, row, b) for row, b in random.Random(seed).sample(legal, min(most, len(legal)))]


def permutes(prediction) -> bool:
    return any(
        entry.kind == "collective-permute" and entry.messages for entry in prediction.step.ledger.entries
    )


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("seed", some(12, range(24)))
def test_a_row_costs_what_its_layout_costs_priced_alone(seed: int, phase: Phase):
    """But for collective-permutes, which some order of the axes may need and the bound leaves out."""
    tables = price(a_case(seed))
    exact, compared, equal = Exact(tables), 0, 0
    for table, seconds, row, b in cells(tables, phase, seed, 25):
        alone = exact.alone(phase, row, b)
        assert alone is not None
        compared += 1
        assert alone.batch == table.batches[b]
        assert seconds[row, b] <= alone.total_seconds * (1 + 1e-9)
        if not permutes(alone):
            equal += 1
            assert seconds[row, b] == pytest.approx(alone.total_seconds, **CLOSE)
            assert table.held_bytes[row, b] == pytest.approx(alone.memory_bytes["total"], rel=1e-9, abs=3)
            assert table.kv_bytes[row, b] == pytest.approx(alone.memory_bytes["kv"], rel=1e-9, abs=1)
    assert equal > compared / 8 > 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("kind", ["chunked", "staged", "both"])
@pytest.mark.parametrize("seed", some(4, range(100, 108)))
def test_chunks_and_stages_cost_at_least_what_the_table_says(seed: int, kind: str, phase: Phase):
    """The table takes an average chunk and the stage with most layers; the rest comes on top."""
    case = a_case(seed, chunked=kind != "staged", staged=kind != "chunked")
    tables = price(case)
    exact = Exact(tables)
    for table, seconds, row, b in cells(tables, phase, seed, 12):
        alone = exact.alone(phase, row, b)
        assert alone is not None
        assert alone.setting.stages == case.stages
        assert seconds[row, b] <= alone.total_seconds * (1 + 1e-9)
        assert table.held_bytes[row, b] <= alone.memory_bytes["total"] * (1 + 1e-9) + 3


def test_chunks_are_priced_for_the_cache_that_an_average_one_sees():
    """A prompt in equal chunks takes what the table says and its logits, which it leaves out."""
    case = next(
        q
        for seed in range(200, 300)
        if (q := a_case(seed, chunked=True)).workload.prompt > q.tokens_of(q.chunks[0]) + q.workload.prefix
        and q.cluster.chips > 1
        and q.model.window is None
        and q.model.latent is None
    )
    tables = price(case)
    exact = Exact(tables)
    for _, seconds, row, b in cells(tables, "prefill", 0, 20):
        alone = exact.alone("prefill", row, b)
        assert alone is not None
        if not permutes(alone):
            assert 0.5 * alone.total_seconds < seconds[row, b] <= alone.total_seconds * (1 + 1e-9)


# -- the passes --------------------------------------------------------------------------------------------

H100 = parse_cluster("h100:2x4")
TOPOLOGY = cluster_topology(H100)
MODEL = catalogue_model("smollm2-135m")


def a_table(phase: Phase, batches: list[int], *, queries: int, contexts: tuple[float, float] | None) -> Table:
    return price_table(a_space(phase), Pricing(H100.chip, Formats(), queries), batches, contexts)


def a_space(phase: Phase, *, gathered: bool = True) -> Space:
    roles = axis_roles(MODEL, TOPOLOGY, phase, gathered=gathered)
    return Space(MODEL, TOPOLOGY, phase, roles, rows(TOPOLOGY, len(roles), 2))


@pytest.mark.parametrize(
    ("phase", "queries", "contexts"),
    [("decode", 1, (200.0, 300.0)), ("prefill", 20, None), ("prefill", 20, (90.0, 100.0))],
)
def test_a_batch_costs_the_same_whichever_others_are_priced_with_it(
    phase: Phase, queries: int, contexts: tuple[float, float] | None
):
    batches = [1, 3, 8, 100]
    together = a_table(phase, batches, queries=queries, contexts=contexts)
    for b, batch in enumerate(batches):
        alone = a_table(phase, [batch], queries=queries, contexts=contexts)
        assert np.array_equal(np.isfinite(together.seconds[:, b]), np.isfinite(alone.seconds[:, 0]))
        assert together.seconds[:, b] == pytest.approx(alone.seconds[:, 0], rel=1e-12)
        assert together.last_seconds[:, b] == pytest.approx(alone.last_seconds[:, 0], rel=1e-12)
        assert together.held_bytes[:, b] == pytest.approx(alone.held_bytes[:, 0], rel=1e-12)


def test_contexts_priced_in_one_pass_are_those_priced_alone():
    space, pricing, batches = a_space("decode", gathered=False), Pricing(H100.chip, Formats(), 1), [1, 8, 64]
    contexts = np.array([100.0, 1000.0, 1500.0])
    many = np.full((len(space.counts), 3, 3), np.inf)
    for each in passes(space, pricing, batches, contexts):
        legal = np.broadcast_to(each.legal[..., None], (*each.legal.shape, 3))
        many[each.cells] = np.where(legal, each.seconds, np.inf)
    for i, context in enumerate(contexts):
        alone = price_table(space, pricing, batches, (float(context), 2000.0))
        assert many[:, :, i] == pytest.approx(alone.seconds, rel=1e-12)
        assert (alone.last_seconds >= alone.seconds * (1 - 1e-12)).all()
    assert np.isfinite(many).mean() > 0.3


def test_configurations_are_the_layouts_and_no_layout_takes_for_ever():
    table = a_table("prefill", [1, 4], queries=2, contexts=None)
    assert table.configurations == np.isfinite(table.seconds).sum() < table.seconds.size
    # two prompts of two tokens cannot be split over eight chips
    gathered = [c for c, roles in enumerate(table.space.roles) if roles.weights.endswith("gathered")]
    over = table.space.counts[:, :, gathered].prod(axis=(1, 2))
    assert not np.isfinite(table.seconds[over > 2][:, 0]).any()
    assert np.isfinite(table.seconds[over == 8][:, 1]).any()


def test_storage_is_what_both_phases_must_agree_on():
    table = a_table("decode", [8], queries=1, contexts=(10.0, 20.0))
    assert table.storage.shape == (len(table.space.counts), 4)
    for counts, stored in zip(table.space.counts, table.storage, strict=True):
        e, f = stored[:2], stored[2:]
        for segment in range(2):
            given = zip(counts[segment], table.space.roles, strict=True)
            replicas = np.prod([n for n, roles in given if not roles.stored])
            assert e[segment] * f[segment] * replicas == TOPOLOGY.segments[segment].size
