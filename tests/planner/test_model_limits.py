"""A model's own limits: a table of positions refuses, what it was trained for is said and shown."""

import pytest
from tests.planner.settings import setting

import partita
from partita.errors import InputError
from partita.planner import make_plan
from partita.planner.model_limits import longest_context
from partita.specs import Workload, catalogue_model


def test_a_table_of_positions_is_no_longer_than_it_is():
    """GPT-2 has 1,024 learned positions: a prompt of 960 and 64 tokens fill them."""
    full = partita.plan("gpt2-124m", "h100:1x1", prompt=960, output=64)
    assert full.cautions == ()
    for sizes in ({"prompt": 961, "output": 64}, {"prompt": 100, "output": 64, "context": 1025}):
        with pytest.raises(InputError, match="has 1,024 learned positions") as caught:
            partita.plan("gpt2-124m", "h100:1x1", **sizes)  # type: ignore[arg-type]
        assert caught.value.field == "context"


@pytest.mark.parametrize(("model", "trained"), [("llama-3-8b", 8192), ("qwen3-4b", 40_960)])
def test_lengths_beyond_what_a_model_was_trained_for_are_named(model: str, trained: int):
    within = make_plan(setting(model, "h100:1x1", prompt=trained - 1, output=1, batch=1, chunk=512))
    assert within.cautions == ()
    beyond = make_plan(setting(model, "h100:1x1", prompt=trained, output=1, batch=1, chunk=512))
    (caution,) = beyond.cautions
    assert caution.name == "beyond_trained_length"
    assert f"{trained + 1:,} tokens are longer than the {trained:,}" in caution.message
    assert beyond.as_json()["cautions"] == [{"name": caution.name, "message": caution.message}]


def test_the_longest_context_stops_where_training_did():
    model = catalogue_model("llama-3-8b")
    within, beyond = (Workload(prompt=n, output=1, batch=1) for n in (100, 9000))
    assert longest_context(model, 400_000, within) == 8192
    assert longest_context(model, 5000, within) == 5000
    assert longest_context(model, 400_000, beyond) == 400_000
    plan = partita.plan("llama-3-8b", "h100:1x8", prompt=100, output=8)
    memory = plan.as_json()["memory"]
    assert memory["longest_context"] == 8192 < memory["max_context"] == plan.chosen.max_context
