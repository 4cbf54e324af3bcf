"""GGUF checkpoints: the model they describe, their tensors by our names, and what is refused."""

from typing import Any

import numpy as np
import pytest
from tests.checkpoints.tiny_gguf import TINY, WriteGGUF, stored_tensors

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.gguf_file import GGUFFile
from partita.checkpoints.open import packaged_gguf
from partita.checkpoints.protocol import StoredCheckpoint, random_parameters
from partita.errors import InputError
from partita.specs.catalogue import catalogue_model
from partita.specs.parameters import all_parameters


def test_model_of_smollm2_is_the_catalogues(smollm2: StoredCheckpoint):
    expected = catalogue_model("smollm2-135m")
    assert smollm2.model == expected.model_copy(update={"name": "SmolLM2-135M-Instruct.Q4_1"})


def test_smollm2_tensors_have_the_listed_shapes(smollm2: StoredCheckpoint):
    total = 0
    for name, row in all_parameters(smollm2.model).items():
        tensor = smollm2.read(name)
        assert (tensor.shape, tensor.dtype, tensor.flags.c_contiguous) == (row.shape, np.float32, True), name
        assert np.isfinite(tensor).all(), name
        total += tensor.size
    assert total == smollm2.model.parameters == 134_515_008


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_come_back_as_they_were_stored(write_gguf: WriteGGUF, tied: bool):
    model = TINY.model_copy(update={"tied_embedding": tied})
    parameters = random_parameters(model, seed=3)
    checkpoint = open_gguf(write_gguf(tensors=stored_tensors(model, parameters)))
    assert checkpoint.model == model
    for name, expected in parameters.items():
        np.testing.assert_array_equal(checkpoint.read(name), expected, err_msg=name)


def test_quantised_tensors_are_dequantised(smollm2: StoredCheckpoint):
    """The first Q4_1 block of a matrix, by the format's definition: d q + m over two nibbles a byte."""
    path = packaged_gguf("smollm2-135m")
    start = GGUFFile(path).tensors["blk.0.ffn_up.weight"].start
    block = np.frombuffer(path.read_bytes(), np.uint8)[start : start + 20]
    scale, least = block[:4].view(np.float16).astype(np.float32)
    nibbles = np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(np.float32)
    np.testing.assert_array_equal(smollm2.read("layers.0.ffn_in")[:32, 1, 0], scale * nibbles + least)


def test_absent_keys_take_the_formats_defaults(write_gguf: WriteGGUF):
    keys = ["attention.head_count_kv", "attention.key_length", "rope.freq_base", "rope.dimension_count"]
    changes = {f"llama.{key}": None for key in [*keys, "context_length"]}
    model = TINY.model_copy(
        update={"kv_heads": 4, "head_dim": 2, "rotary_base": 10_000.0, "max_context": None}
    )
    tensors = stored_tensors(model, random_parameters(model, seed=0))
    assert open_gguf(write_gguf(changes, tensors)).model == model


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", None),
        ("llama.block_count", "two"),
        ("llama.block_count", 10**6),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", [4, 4]),
        ("llama.rope.freq_base", -1.0),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.dimension_count", 2),
        ("llama.rope.scaling.type", "longrope"),
        ("llama.rope.scaling.factor", -8.0),
        ("llama.rope.scaling.attn_factor", 1.1),
        ("llama.attention.value_length", 8),
        ("llama.attention.sliding_window", 4096),
        ("llama.expert_count", 8),
        ("llama.attention.causal", False),
        ("llama.logit_scale", 0.5),
        ("split.count", 3),
        ("tokenizer.ggml.model", "rwkv"),
        ("tokenizer.ggml.pre", "gemma4"),
        ("tokenizer.ggml.token_type", [1, 2]),
        ("tokenizer.ggml.merges", ["a d"]),
        ("tokenizer.ggml.tokens", ["a", "a"]),
        ("tokenizer.ggml.tokens", [chr(300 + i) for i in range(13)]),
        ("tokenizer.ggml.eos_token_id", 12),
    ],
)
def test_what_is_not_run_is_refused_by_name(write_gguf: WriteGGUF, key: str, value: Any):
    path = write_gguf({key: value})
    with pytest.raises(InputError) as caught:
        _ = open_gguf(path).tokenizer
    assert caught.value.field == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("llama.rope.scaling.type", "none"), ("llama.expert_count", 0), ("llama.rope.scale_linear", 1.0)],
)
def test_keys_without_effect_are_accepted(write_gguf: WriteGGUF, key: str, value: Any):
    assert open_gguf(write_gguf({key: value})).model == TINY


def test_other_architectures_are_refused_with_those_supported(write_gguf: WriteGGUF):
    with pytest.raises(InputError, match=r"general\.architecture: 'mamba': .*supported are: llama"):
        open_gguf(write_gguf(architecture="mamba"))


def test_all_wrong_tensors_are_named_in_one_error(write_gguf: WriteGGUF):
    path = write_gguf(
        tensors={
            "blk.0.attn_q.weight": None,
            "blk.1.ffn_up.weight": np.zeros((6, 9), np.float32),
            "blk.1.attn_q.bias": np.zeros(16, np.float32),
            "rope_factors_long.weight": np.zeros(2, np.float32),
        }
    )
    with pytest.raises(InputError) as caught:
        open_gguf(path)
    message = str(caught.value)
    for part in (
        "lacks blk.0.attn_q.weight",
        "blk.1.ffn_up.weight ((6, 9), expected (6, 8))",
        "(biases, rotary tables): 'blk.1.attn_q.bias', 'rope_factors_long.weight'",
    ):
        assert part in message
    assert (caught.value.field, caught.value.value) == ("model", str(path))
    assert "\n" not in message


def test_sizes_that_do_not_fit_together_are_refused(write_gguf: WriteGGUF):
    path = write_gguf({"llama.attention.head_count_kv": 3})
    with pytest.raises(InputError, match="must be a multiple of kv_heads"):
        open_gguf(path)
