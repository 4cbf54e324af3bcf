"""Seconds of steps against `predict`, priced one by one; and what a server holds against arithmetic."""

import numpy as np
import pytest

from partita.cost.prediction import Prediction, predict
from partita.cost.setting import Setting
from partita.errors import InputError
from partita.scheduler import POLICIES
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import Roles, parse_roles
from partita.simulation.prices import Basis, Prices, Pricing, Sizes
from partita.simulation.server import Server
from partita.simulation.tables import Curve, Rows, Surface, grid
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.profile import Phase

BASES: tuple[Basis, ...] = ("bound", "estimate")


def setting(model: str, cluster: str, mesh: str, **workload: int) -> Setting:
    given = {"prompt": 1, "output": 1, "batch": 1} | workload
    return Setting(
        catalogue_model(model), parse_cluster(cluster), parse_mesh(mesh), Formats(), Workload(**given)
    )


CASES = {
    "heads on GPUs": ("llama3.1-8b", "h100:1x2", "x=2", "ws1d/heads", "ws1d/heads"),
    "gathered, batch on TPUs": ("palm-540b", "tpu-v4:4x4x4", "x=4,y=4,z=4", "wg-xyz/batch", "ws2d/batch"),
    "windows": ("gemma3-4b", "tpu-v5e:2x2", "x=2,y=2", "ws2d/heads", "ws2d/batch"),
}


class Case:
    def __init__(self, name: str, basis: Basis):
        model, cluster, mesh, *layouts = CASES[name]
        self.given, self.basis = (model, cluster, mesh), basis
        self.setting = setting(*self.given)
        self.prefill, self.decode = (self.roles(layout) for layout in layouts)
        self.storage = plan_storage(self.setting.model, self.setting.mesh, self.decode, self.prefill)
        pricing = Pricing(self.setting, self.storage, basis)
        self.prices = Prices(pricing, self.prefill, [self.decode], Sizes(256, 8192, 16384))

    def roles(self, layout: str) -> Roles:
        ffn, attention = layout.split("/")
        return parse_roles(ffn, attention, self.setting.mesh.axes)

    def predicted(self, phase: Phase, **workload: int) -> float:
        roles = self.prefill if phase == "prefill" else self.decode
        found: Prediction = predict(setting(*self.given, **workload), phase, roles, self.storage)
        if self.basis == "bound":
            return found.step_seconds
        assert found.estimate is not None
        return found.estimate.step_seconds


@pytest.fixture(scope="module", params=[(name, basis) for name in CASES for basis in BASES], ids="/".join)
def case(request) -> Case:
    return Case(*request.param)


@pytest.mark.parametrize("sequences", [1, 8, 40, 100, 256])
@pytest.mark.parametrize("context", [1, 700, 3000, 16000])
def test_a_decode_step_takes_what_predict_says(case: Case, sequences: int, context: int):
    expected = case.predicted("decode", batch=sequences, context=context)
    assert case.prices.decode(sequences, sequences * context) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("tokens", [64, 1000, 8000])
def test_reading_one_prompt_takes_what_predict_says(case: Case, tokens: int):
    expected = case.predicted("prefill", prompt=tokens)
    assert case.prices.read([(tokens, 0)]) == pytest.approx(expected, rel=0.01)


def test_reading_the_rest_of_a_prompt_takes_what_predict_says(case: Case):
    expected = case.predicted("prefill", prompt=6000, prefix=5000)
    assert case.prices.read([(1000, 5000)]) == pytest.approx(expected, rel=0.01)


def test_reading_equal_prompts_together_takes_what_predict_says(case: Case):
    expected = case.predicted("prefill", prompt=1000, batch=4, prefill_batch=4)
    assert case.prices.read([(1000, 0)] * 4) == pytest.approx(expected, rel=0.01)


def test_one_pass_takes_less_than_two_and_more_than_either(case: Case):
    read, decode = case.prices.read([(1000, 0)]), case.prices.decode(40, 40 * 3000)
    if case.prefill == case.decode:  # otherwise it runs in prefill's layout, in which weights move
        assert max(read, decode) < case.prices.fused([(1000, 0)], 40, 40 * 3000) < read + decode
    assert case.prices.step([(1000, 0)], 40, 40 * 3000, fused=False) == pytest.approx(read + decode)
    assert case.prices.step([], 40, 40 * 3000, fused=True) == decode


def test_a_bound_is_below_its_estimate():
    for name in CASES:
        bound, estimate = (Case(name, basis).prices for basis in BASES)
        steps = ([((500, 0), (900, 40)), 0], [((2000, 4000),), 30], [(), 100], [((64, 0),) * 20, 7])
        for portions, sequences in steps:
            given = portions, sequences, sequences * 900.0, True
            assert bound.step(*given) < estimate.step(*given)  # pyright: ignore[reportArgumentType]


def test_tokens_beside_sequences_fill_the_time_there_is(case: Case):
    sequences, attended = 40, 40 * 1000
    alone = case.prices.decode(sequences, attended)
    assert case.prices.tokens_within(alone, sequences, attended, fused=False) == 0
    limit = alone + case.prices.read([(600, 0)])
    assert case.prices.tokens_within(limit, sequences, attended, fused=False) == pytest.approx(600, rel=0.05)


def test_keys_and_values_move_only_between_layouts_that_differ():
    same, other = Case("heads on GPUs", "bound").prices, Case("windows", "bound").prices
    assert (same.moves, same.moved(1000)) == (False, 0.0)
    assert other.moves
    assert other.moved(2000) >= other.moved(1000) > 0


def test_blocks_are_what_the_weights_leave():
    """Llama 3.1 8B on one H100: 8.03e9 x 2 bytes of weights; 32 layers x 8 heads x 128 x 2 x 2 of a token."""
    given = setting("llama3.1-8b", "h100:1x1", "x=1")
    roles = parse_roles("ws1d", "heads", "x")
    capacity = Server(given, roles, roles, 2048, 8192).capacity(budget=512)
    left = 0.9 * 80e9 - 2 * 8_030_261_248
    assert capacity.blocks is not None
    assert capacity.blocks * 16 * 131_072 == pytest.approx(left, rel=0.06)  # activations take the rest
    assert (capacity.shards, capacity.tokens, capacity.slots) == (1, 8192, 2048)
    split = setting("llama3.1-8b", "h100:1x2", "x=2")
    apart = Server(split, roles, parse_roles("ws1d", "batch", "x"), 7, 1000).capacity(budget=512)
    assert (apart.shards, apart.slots, apart.blocks) == (2, 8, 4 * 63)  # no more than the slots can fill


def test_what_does_not_fit_or_is_not_simulated_is_refused():
    given, roles = setting("llama3.1-8b", "h100:1x1", "x=1"), parse_roles("ws1d", "heads", "x")
    with pytest.raises(InputError, match=r"memory-share.*one sequence of 900,000 tokens"):
        Server(given, roles, roles, 4, 900_000).capacity(budget=512)
    storage = plan_storage(given.model, given.mesh, roles, roles)
    staged = Setting(given.model, given.cluster, given.mesh, given.formats, given.workload, 2)
    with pytest.raises(InputError, match="stages"):
        Pricing(staged, storage, "bound")


def test_layouts_that_decode_may_change_to_are_better_somewhere():
    given = setting("llama3.1-8b", "h100:1x2", "x=2")
    roles = parse_roles("ws1d", "heads", "x")
    server = Server(given, roles, roles, 128, 4000)
    (other,) = server.alternatives("estimate")
    assert str(other) == "ws1d/batch"
    prices = server.prices("estimate", POLICIES["switching"].budget, [other])
    few, many = ([decode(n, n * 2000.0) for decode in prices.layouts] for n in (1, 128))
    assert few[0] <= few[1]  # one sequence is not split: there it is the same layout
    assert many[1] < many[0]
    assert prices.switched(128 * 2000, 0, 1) > prices.switched(2000, 0, 1) > 0


def test_tables_are_straight_between_their_points():
    curve = Curve([1, 3, 7], np.array([10.0, 20.0, 0.0]))
    assert [curve(x) for x in (1, 2, 3, 5, 7, 9)] == [10, 15, 20, 10, 0, -10]
    surface = Surface([0, 2], [0, 1, 4], np.array([[0.0, 1, 4], [2.0, 3, 6]]))
    assert [surface(*at) for at in ((1, 0), (1, 2.5), (3, 6))] == [1, 3.5, 9]
    rows = Rows([1, 2], np.array([[0.0, 0], [1.0, 3]]))
    assert [rows(1, x) for x in (1, 1.5, 3)] == [1, 2, 5]
    assert (grid(1, 4), grid(16, 1)) == ([1, 2], [1, 2, 4, 8, 16])
