"""Rules: each found where it is broken and nowhere else, priced against what was worked out by hand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.pairs import NAMED, phase_of
from tests.planner.settings import palm, setting
from tests.sizes import examples

from partita.advice.rule import Rule
from partita.advice.rules import broken_rules
from partita.cost.prediction import Prediction, predict
from partita.sharding.mesh import Mesh
from partita.specs import Formats, Workload
from partita.specs.profile import Phase

INT8 = Formats(weights="int8")


def by_name(prediction: Prediction) -> dict[str, Rule]:
    found = broken_rules(prediction)
    assert len({rule.name for rule in found}) == len(found)
    return {rule.name: rule for rule in found}


def resized(prediction: Prediction, **fields: int) -> Prediction:
    """The same layout and storage for another workload."""
    own = prediction.setting.workload
    sizes = {name: getattr(own, name) for name in Workload.model_fields} | fields
    changed = replace(prediction.setting, workload=Workload(**sizes))
    return predict(changed, prediction.phase, prediction.layout.roles, prediction.layout.storage)


def smollm2(phase: Phase, layout: str = "ws2d/batch", **workload: int) -> Prediction:
    """9 heads and 3 KV heads on 1 x 2 x 4 chips: nothing about them divides."""
    return phase_of(setting("smollm2-135m", "tpu-v4:1x2x4", None, **workload), phase, layout)


def test_a_layout_that_divides_and_fits_breaks_none():
    assert broken_rules(phase_of(setting("palm-8b", "tpu-v4:2x2x2", batch=32), "decode", "ws2d/batch")) == []


def test_every_rule_is_listed_at_once():
    given = palm(INT8, batch=601, prompt=2050, prefill_batch=1)
    found = by_name(phase_of(given, "decode", "ws2d/heads"))
    assert list(found) == ["memory", "heads", "quantisation", "kv_replicas"]
    assert [rule.name for rule in found.values() if rule.hard] == ["memory"]


# -- weights --------------------------------------------------------------------------------------------


def test_padded_heads_name_their_neighbours_and_cost_their_bytes():
    found = by_name(smollm2("decode", batch=8, prompt=2, output=1))
    heads, kv = found["heads"], found["kv_heads"]
    assert (heads.size, heads.needed, kv.size, kv.needed) == (9, 16, 3, 4)
    assert "3 or 9" in heads.alternative
    assert kv.alternative.startswith("3 ways divide 3")
    assert "77.8% more" in heads.message
    # 30 layers, E = 576, D = 64: q and o for 7 heads more, keys and values for 1 more, bf16, on 8 chips
    assert heads.bytes_per_chip == pytest.approx(30 * 576 * 64 * (2 * 7 + 2 * 1) * 2 / 8, rel=0.01)


def test_padding_costs_the_time_of_reading_its_zeros():
    """Decode at this batch is bound by memory, and padded heads change nothing that is sent but queries."""
    prediction = smollm2("decode", "ws1d/heads", batch=1, prompt=2, output=1)
    heads = by_name(prediction)["heads"]
    reading = heads.bytes_per_chip / prediction.setting.cluster.chip.hbm_bandwidth
    assert heads.step_seconds == pytest.approx(reading, rel=0.05)


def test_heads_without_groups_are_one_rule():
    given = setting("mt-nlg-530b", "tpu-v4:1x5x5", batch=25)
    assert given.model.group == 1
    found = by_name(phase_of(given, "decode", "ws1d/heads"))
    assert "heads" in found
    assert "kv_heads" not in found


@pytest.mark.parametrize(
    ("name", "field"), [("d_ff", "d_ff"), ("d_model", "d_model"), ("vocabulary", "vocabulary")]
)
def test_a_dim_that_does_not_divide_is_named(name: str, field: str):
    given = setting("palm-8b", "tpu-v4:2x2x2", batch=32)
    odd = given.model.model_copy(update={field: getattr(given.model, field) + 1})
    found = by_name(phase_of(replace(given, model=odd), "decode", "ws2d/batch"))
    assert list(found) == [name]
    assert found[name].needed == getattr(given.model, field) + 8
    assert found[name].bytes_per_chip > 0


def test_int8_channels_are_split_by_every_layout_of_several_chips():
    several = by_name(phase_of(palm(INT8, batch=64), "decode", "ws2d/batch"))
    assert several["quantisation"].bytes_per_chip > 0
    assert "scales (4 bytes each, counted with the weights)" in several["quantisation"].message
    alone = setting("palm-8b", "tpu-v4:1x1x1", INT8, batch=1)
    assert "quantisation" not in by_name(phase_of(alone, "decode", "ws2d/batch"))
    assert "quantisation" not in by_name(phase_of(palm(batch=64), "decode", "ws2d/batch"))


# -- tokens and cache -----------------------------------------------------------------------------------


def test_copies_of_one_kv_head_are_counted_and_priced():
    prediction = phase_of(palm(INT8, batch=64), "decode", "ws2d/heads")
    rule = by_name(prediction)["kv_replicas"]
    assert (rule.size, rule.needed) == (1, 64)
    assert "64 times" in rule.message
    kv = prediction.memory_bytes["kv"]
    assert rule.bytes_per_chip == pytest.approx(kv * 63 / 64)
    # bound by memory, so the copies cost exactly the time to read them
    assert rule.step_seconds == pytest.approx(float(prediction.bound.kv_seconds) * 63 / 64)
    other = phase_of(prediction.setting, "decode", "ws2d/batch")
    change = 1 - other.step_seconds / prediction.step_seconds
    assert rule.alternative.startswith("attention over batch on axes xyz")
    assert rule.alternative.endswith(f"{change:.1%} less")


def test_a_batch_too_small_for_its_axes_falls_back_and_says_so():
    rule = by_name(smollm2("decode", batch=5, prompt=100, output=5))["batch"]
    assert (rule.size, rule.needed) == (5, 8)
    assert "heads over z" in rule.message
    assert "batch" not in by_name(smollm2("decode", batch=8, prompt=100, output=5))


def test_a_gathered_axis_without_tokens_repeats_work():
    prediction = phase_of(palm(INT8, batch=8), "decode", "wg-xyz/batch")
    rule = by_name(prediction)["tokens"]
    assert (rule.size, rule.needed) == (8, 64)
    assert rule.step_seconds >= 0
    assert "tokens" not in by_name(phase_of(palm(INT8, batch=64), "decode", "wg-xyz/batch"))


def test_an_uneven_batch_takes_the_step_of_the_next_multiple():
    prediction = smollm2("decode", batch=5, prompt=100, output=5)
    rule = by_name(prediction)["batch_padded"]
    assert (rule.size, rule.needed) == (5, 6)
    assert resized(prediction, batch=6).step_seconds == prediction.step_seconds
    fewer = resized(prediction, batch=4)
    assert rule.step_seconds == pytest.approx(prediction.step_seconds - fewer.step_seconds)
    assert "4 or 6" in rule.alternative


def test_an_uneven_prompt_is_named_in_prefill_only():
    given = setting("palm-8b", "tpu-v4:2x2x2", batch=1, prompt=1001)
    assert by_name(phase_of(given, "prefill", "wg-xyz/batch"))["prompt_padded"].needed == 1008
    assert "prompt_padded" not in by_name(phase_of(given, "decode", "wg-xyz/batch"))


# -- hard rules -----------------------------------------------------------------------------------------


def test_memory_is_hard_by_part_and_its_alternatives_fit():
    prediction = phase_of(palm(batch=600), "decode", "ws2d/heads")
    rule = broken_rules(prediction)[0]
    assert (rule.name, rule.hard) == ("memory", True)
    memory = prediction.memory_bytes
    assert (rule.size, rule.needed) == (memory["capacity"], memory["total"])
    assert "weights 17.4 GB + kv 1" in rule.message
    assert f"a batch of {prediction.max_batch:,}" in rule.alternative
    assert resized(prediction, batch=prediction.max_batch).fits
    assert not resized(prediction, batch=prediction.max_batch + 1).fits


def test_weights_that_fit_nowhere_name_the_chips_they_take():
    prediction = phase_of(setting("palm-540b", "tpu-v4:2x2x2", batch=1), "decode", "ws2d/batch")
    rule = broken_rules(prediction)[0]
    memory = prediction.memory_bytes
    least = int(rule.alternative.split(" take ")[1].split(" ")[0])
    room = memory["capacity"] - memory.get("runtime", 0)
    assert least * room >= 8 * memory["weights"] > (least - 1) * room


# -- all of them ----------------------------------------------------------------------------------------


@examples(15)
@given(
    model=st.sampled_from(["smollm2-135m", "palm-8b", "llama-3-8b"]),
    layout=st.sampled_from(NAMED),
    phase=st.sampled_from(["prefill", "decode"]),
    shape=st.sampled_from(["1x1x1", "1x1x3", "1x2x4", "2x2x2", "1x5x2"]),
    batch=st.integers(1, 40),
    prompt=st.integers(1, 300),
    weights=st.sampled_from(["bf16", "int8"]),
)
def test_rules_are_one_line_each_and_never_pay(model, layout, phase, shape, batch, prompt, weights):
    on = setting(model, f"tpu-v4:{shape}", Formats(weights=weights), batch=batch, prompt=prompt)
    prediction = phase_of(on, phase, layout)
    for rule in broken_rules(prediction):
        assert "\n" not in str(rule)
        assert rule.bytes_per_chip >= 0
        assert 0 <= rule.step_seconds <= prediction.step_seconds
        assert rule.hard == (rule.name == "memory")
        assert json.loads(json.dumps(rule.as_json()))["name"] == rule.name
    names = {rule.name for rule in broken_rules(prediction)}
    assert ("memory" in names) != prediction.fits
    assert names >= prediction.padding.keys() - ({"kv_heads"} if on.model.group == 1 else set())


# -- pipeline stages and latent caches ------------------------------------------------------------------


def test_layers_that_stages_do_not_divide_cost_the_longest_its_part_of_a_layer():
    whole = setting("mt-nlg-530b", "a100-80g:2x8", batch=2, prompt=20, output=8)
    prediction = phase_of(replace(whole, mesh=Mesh.of((8,)), stages=2), "decode", "ws1d/heads")
    rule = by_name(prediction)["stages"]
    assert (rule.size, rule.needed) == (105, 106)
    assert rule.alternative == "1 or 3 stages divide 105 layers"
    model = whole.model
    half_a_layer = model.layer_parameters / 2 * 2 / 8  # bf16, on 8 chips
    assert rule.bytes_per_chip == pytest.approx(half_a_layer, rel=0.02)
    reading = half_a_layer / whole.cluster.chip.hbm_bandwidth
    assert 0.9 * reading < rule.step_seconds < 3 * reading  # two microbatches read it each, and sum it
    even = replace(whole, mesh=Mesh.of((8,)), stages=2, model=model.model_copy(update={"layers": 104}))
    assert "stages" not in by_name(phase_of(even, "decode", "ws1d/heads"))


def test_a_latent_cache_has_one_row_for_all_heads():
    prediction = phase_of(setting("minicpm3-4b", "tpu-v4:1x2x2", batch=4), "decode", "ws1d/heads")
    rule = by_name(prediction)["kv_replicas"]
    assert (rule.size, rule.needed) == (1, 4)
    assert "attention over batch on axes yz keeps them once" in rule.alternative
    over_batch = phase_of(prediction.setting, "decode", "ws1d/batch")
    assert prediction.memory_bytes["kv"] - over_batch.memory_bytes["kv"] == pytest.approx(rule.bytes_per_chip)
