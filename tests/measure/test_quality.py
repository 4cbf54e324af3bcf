"""What number formats cost: the figures from logits made by hand, and those of models that are run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests import reference
from tests.checkpoints.in_memory import in_int8
from tests.checkpoints.tiny_gguf import TINY
from tests.sizes import full

from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.errors import InputError
from partita.measure.quality import compare, formats_named, measure, shipped_text, windows, windows_of
from partita.sharding import Mesh, parse_layout
from partita.specs.formats import Formats
from partita.specs.parameters import all_parameters

ONE = Mesh.of((1,))
ROLES = parse_layout("ws2d/heads", "x")


# -- figures ----------------------------------------------------------------------------------------------


def test_equal_logits_differ_in_nothing():
    logits = np.log(np.array([[1, 2, 5], [6, 1, 1]], np.float32))
    found = compare(logits, logits, [2, 1])
    assert (found.tokens, found.agreement, found.rms_error, found.largest_error) == (2, 1, 0, 0)
    assert found.mean_divergence == pytest.approx(0, abs=1e-12)
    assert found.perplexity == pytest.approx(math.sqrt(8 / 5 * 8 / 1))


def test_logits_that_are_all_higher_by_one_predict_the_same():
    logits = np.random.default_rng(1).standard_normal((150, 7)).astype(np.float32)
    following = [i % 7 for i in range(150)]
    same, higher = compare(logits, logits, following), compare(logits, logits + 1, following)
    assert higher.perplexity == pytest.approx(same.perplexity, rel=1e-6)
    assert higher.mean_divergence == pytest.approx(0, abs=1e-9)
    assert (higher.tokens, higher.agreement) == (150, 1)
    assert higher.rms_error == pytest.approx(1, rel=1e-6)


def test_other_predictions_by_hand():
    exact = np.log(np.array([[1, 3], [1, 1]], np.float32))
    found = compare(exact, np.log(np.array([[3, 1], [1, 1]], np.float32)), [0, 1])
    assert found.agreement == 0.5
    assert found.perplexity == pytest.approx(math.sqrt(4 / 3 * 2))
    # 1/4 log(1/3) + 3/4 log 3, and nothing for the second token
    assert found.mean_divergence == pytest.approx(math.log(3) / 4)
    assert found.largest_error == pytest.approx(math.log(3))
    assert found.rms_error == pytest.approx(math.log(3) / math.sqrt(2))
    # the first token has become three times as likely, the second stays
    assert found.perplexity_change == pytest.approx(1 / math.sqrt(3) - 1)
    assert found.perplexity_change_error == pytest.approx(math.log(3) / 2 / math.sqrt(2) / math.sqrt(3))


def test_windows_are_equal_and_lose_next_to_nothing():
    ids = list(range(10, 33))
    assert windows(ids, 23) == windows(ids, 100) == [ids]
    assert windows(ids, 8) == [ids[:7], ids[7:14], ids[14:21]]
    assert windows(ids, 8, begin=1) == [[1, *ids[i : i + 5]] for i in (0, 5, 10, 15)]
    assert windows([5], 8, begin=1) == [[1, 5]]
    for wrong, size in (([5], 8), ([], 8), (ids, 1)):
        with pytest.raises(InputError, match="2 or more"):
            windows(wrong, size)


def test_what_a_name_stands_for():
    assert formats_named("bf16") == Formats.all_in("bf16")
    assert formats_named("int8+kv") == Formats(weights="int8", activations="f32", kv="int8")
    assert formats_named("int8", "bf16") == Formats(weights="int8", activations="bf16", kv="bf16")
    with pytest.raises(InputError, match=r"formats: int4: accepted are f32, bf16, int8, int8\+kv"):
        formats_named("int4")


# -- models -----------------------------------------------------------------------------------------------


def test_perplexity_is_what_the_reference_predicts():
    """Logits in float32, and in int8 of what the numbers stand for; an int8 cache costs a little more."""
    checkpoint = MemoryCheckpoint(TINY, random_parameters(TINY, seed=2))
    held = in_int8(checkpoint)
    stood_for = {name: held.read(name) for name in all_parameters(TINY)}
    parts = [[1, 5, 3, 3, 8, 2, 0], [9, 4, 4, 7, 6, 1, 11]]
    kinds = [formats_named("int8"), formats_named("int8+kv")]
    told: list[tuple[str, int, int]] = []
    exact, int8, cached = measure(checkpoint, parts, kinds, ONE, ROLES, progress=lambda *at: told.append(at))
    for found, parameters in ((exact, checkpoint.parameters), (int8, stood_for)):
        assert found.tokens == 12
        assert found.perplexity == pytest.approx(perplexity(parameters, parts), rel=1e-5)
    off = np.concatenate(
        [
            (reference.logits(TINY, stood_for, ids) - reference.logits(TINY, checkpoint.parameters, ids))[:-1]
            for ids in parts
        ]
    )
    assert int8.rms_error == pytest.approx(math.sqrt((off**2).mean()), rel=1e-3)
    assert int8.largest_error == pytest.approx(abs(off).max(), rel=1e-3)
    assert exact.largest_error == 0
    assert cached.rms_error > 0
    assert cached.rms_error != int8.rms_error
    assert told[-1] == ("2 of 2: running", 2, 2)


def perplexity(parameters, parts: list[list[int]]) -> float:
    loss = []
    for ids in parts:
        shares = np.exp(reference.logits(TINY, parameters, ids))
        shares /= shares.sum(axis=-1, keepdims=True)
        loss += [-math.log(shares[i, token]) for i, token in enumerate(ids[1:])]
    return math.exp(sum(loss) / len(loss))


@pytest.mark.parametrize("kinds", [["int8+kv"], full(["int8", "int8+kv"])], ids=" and ".join)
def test_a_real_model_in_int8_is_within_one_percent_of_float32(kinds: list[str]):
    checkpoint = open_checkpoint("smollm2-135m")
    assert checkpoint.tokenizer is not None
    parts = windows_of(shipped_text(), checkpoint.tokenizer, checkpoint.model.max_context)
    exact, *found = measure(checkpoint, parts, [formats_named(kind) for kind in kinds], ONE, ROLES)
    assert 2 < exact.perplexity < 40  # it reads English
    assert len(found) == len(kinds)
    for each in found:
        # enough for the change to be known to a third of what is allowed
        assert each.tokens > 1000
        assert 0 < each.perplexity_change_error < 0.004
        assert abs(each.perplexity_change) < 0.01
        assert each.agreement > 0.9
        assert 0 < each.mean_divergence < 0.01
