"""GGUF files of each architecture: the model of their metadata, their tensors, their rotary scaling."""

import math
from typing import Any

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import stored_forms as forms
from tests.checkpoints import tiny_gguf
from tests.checkpoints.tiny_gguf import WriteGGUF

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.gguf_model import ARCHITECTURES
from partita.checkpoints.names import GGUF
from partita.checkpoints.protocol import StoredCheckpoint, random_parameters
from partita.errors import InputError
from partita.program.positions import frequencies
from partita.specs.model import LinearScaling, Llama3Scaling, Model, YarnScaling
from partita.specs.parameters import all_parameters

_RMS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500.0}
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
_GEMMA = {**_RMS, "attention.sliding_window": 8}
CASES: dict[str, tuple[str, Model, dict[str, Any]]] = {
    "qwen2": ("qwen2", forms.QWEN2, _RMS),
    "qwen3": ("qwen3", forms.QWEN3, _RMS),
    "gemma2": (
        "gemma2",
        forms.GEMMA2,
        {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": ("gemma3", forms.GEMMA3, {**_GEMMA, "rope.freq_base_swa": 100.0}),
    "gptneox": (
        "gptneox",
        forms.GPT_NEOX,
        {**_LAYER_NORM, "use_parallel_residual": True, "rope.dimension_count": 2},
    ),
    "gpt2": ("gpt2", forms.GPT2, _LAYER_NORM),
    "falcon": ("falcon", forms.FALCON, _LAYER_NORM),
    "falcon_grouped": ("falcon", forms.FALCON_GROUPED, _LAYER_NORM),
}


def write(write_gguf: WriteGGUF, case: str, parameters: dict[str, np.ndarray], **changes: Any) -> Any:
    architecture, model, own = CASES[case]
    sizes = {
        "block_count": model.layers,
        "context_length": model.max_context,
        "embedding_length": model.d_model,
        "feed_forward_length": model.d_ff,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
    }
    metadata = {f"{architecture}.{key}": value for key, value in {**sizes, **own, **changes}.items()}
    without = {key: None for key in tiny_gguf.TINY_METADATA if key.startswith("llama.")}
    no_llama = dict.fromkeys(tiny_gguf.stored_tensors(tiny_gguf.TINY, random_parameters(tiny_gguf.TINY, 0)))
    tensors = {**no_llama, **forms.gguf_tensors(model, parameters, architecture)}
    return write_gguf({**without, **metadata}, tensors, architecture)


@pytest.mark.parametrize("case", CASES)
def test_every_architecture_is_read_as_it_is_stored(write_gguf: WriteGGUF, case: str):
    model = CASES[case][1]
    parameters = random_parameters(model, seed=3)
    checkpoint = open_gguf(write(write_gguf, case, parameters))
    assert checkpoint.model == model
    for name in all_parameters(model):
        np.testing.assert_array_equal(checkpoint.read(name), parameters[name], err_msg=name)


def test_every_architecture_has_a_case():
    assert {case[0] for case in CASES.values()} | {"llama"} == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_are_those_of_the_gguf_library(architecture: str):
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[MODEL_ARCH(number)]}
    stored = {
        part.stored.removesuffix(".weight").removesuffix(".bias").replace("blk.0.", "blk.{bid}.")
        for name, model, _ in CASES.values()
        if name == architecture
        for parameter, source in GGUF[name].sources(model, {}).items()
        if not parameter.startswith(("layers.1", "layers.2"))
        for part in source.parts
    }
    assert stored <= known
    assert stored or architecture == "llama"


@given(data=st.data())
def test_any_slice_of_a_quantised_file_equals_that_of_the_whole(
    smollm2: StoredCheckpoint, data: st.DataObject
):
    name = data.draw(
        st.sampled_from(["layers.3.q", "layers.3.kv", "layers.3.o", "layers.3.ffn_in", "layers.3.norm"])
    )
    shape = all_parameters(smollm2.model)[name].shape
    ends = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    index = tuple(slice(*pair) for pair in ends)
    np.testing.assert_array_equal(smollm2.read(name, index), smollm2.read(name)[index])


@pytest.mark.parametrize(
    ("layers", "case", "scale"),
    [(46, "gemma2", 2**-0.5), (45, "gemma2", None), (62, "gemma3", 2**-0.5), (46, "gemma3", None)],
)
def test_the_largest_gemma_scales_scores_by_its_width(
    write_gguf: WriteGGUF, layers: int, case: str, scale: float | None
):
    """12 / 6 heads is 2, where a head has 4 numbers."""
    architecture, model, own = CASES[case]
    larger = model.model_copy(update={"layers": layers, "attention_scale": scale})
    CASES["larger"] = (architecture, larger, own)
    try:
        path = write(write_gguf, "larger", random_parameters(larger, seed=0))
    finally:
        del CASES["larger"]
    assert open_gguf(path).model == larger


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, LinearScaling(factor=4)),
        ({"rope.scale_linear": 4.0}, LinearScaling(factor=4)),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
            YarnScaling(factor=4, original_max_position=32),
        ),
        (
            {
                **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
                **{"rope.scaling.original_context_length": 32, "rope.scaling.yarn_ext_factor": 1.0},
                **{"rope.scaling.attn_factor": 1.5, "rope.scaling.yarn_attn_factor": 1.0},
            },
            YarnScaling(factor=4, original_max_position=32, attention_factor=1.5 * (0.1 * math.log(4) + 1)),
        ),
    ],
)
def test_scaling_of_positions_is_read(write_gguf: WriteGGUF, metadata: dict[str, Any], scaling: Any):
    parameters = random_parameters(forms.QWEN2, seed=0)
    model = open_gguf(write(write_gguf, "qwen2", parameters, **metadata)).model
    assert model == forms.QWEN2.model_copy(update={"rotary_scaling": scaling})


LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)


def divisors(scaling: Llama3Scaling) -> np.ndarray:
    scaled = tiny_gguf.TINY.model_copy(update={"rotary_scaling": scaling, "rotary_base": 5e5, "head_dim": 32})
    return frequencies(scaled.model_copy(update={"rotary_scaling": None})) / frequencies(scaled)


def llama3(write_gguf: WriteGGUF, divisor: np.ndarray) -> Any:
    wide = tiny_gguf.TINY.model_copy(update={"head_dim": 32})
    tensors = tiny_gguf.stored_tensors(wide, random_parameters(wide, seed=0))
    head = {"attention.key_length": 32, "rope.dimension_count": 32, "rope.freq_base": 5e5}
    changes = {f"llama.{key}": value for key, value in head.items()}
    return write_gguf(changes, {**tensors, "rope_freqs.weight": divisor.astype(np.float32)})


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_scaling_of_llama_3_is_found_in_its_divisors(write_gguf: WriteGGUF, factor: float):
    scaling = LLAMA3.model_copy(update={"factor": factor})
    found = divisors(scaling)
    assert found.min() == 1
    assert found.max() == pytest.approx(factor)
    assert ((found > 1.01) & (found < 0.99 * factor)).any()  # one that is neither kept nor divided whole
    model = open_gguf(llama3(write_gguf, found)).model
    assert isinstance(model.rotary_scaling, Llama3Scaling)
    assert model.rotary_scaling.factor == pytest.approx(factor)
    assert model.rotary_scaling == scaling.model_copy(update={"factor": model.rotary_scaling.factor})


@pytest.mark.parametrize(
    "change",
    [lambda d: d * 2, lambda d: d[:-1], lambda d: d * np.nan, lambda d: d.clip(2), lambda d: d[::-1]],
)
def test_other_divisors_are_refused(write_gguf: WriteGGUF, change: Any):
    with pytest.raises(InputError, match=r"rope_freqs\.weight are not the divisors"):
        open_gguf(llama3(write_gguf, np.ascontiguousarray(change(divisors(LLAMA3)))))


def test_divisors_of_one_change_nothing(write_gguf: WriteGGUF):
    assert open_gguf(llama3(write_gguf, np.ones(16))).model.rotary_scaling is None


@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        ("gptneox", "rope.dimension_count", 3),
        ("gptneox", "rope.dimension_count", 6),
        ("gptneox", "attention.layer_norm_epsilon", None),
        ("gemma2", "attention.sliding_window", 0),
        ("gemma2", "attention.sliding_window", None),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("qwen2", "rope.scaling.type", "yarn"),
        ("qwen2", "rope.scaling.attn_factor", 1.5),
        ("qwen2", "rope.scaling.yarn_ext_factor", 0.5),
        ("qwen2", "rope.scaling.yarn_attn_factor", 3.0),
        ("falcon", "attention.sliding_window", 4),
    ],
)
def test_keys_that_are_not_run_are_refused(write_gguf: WriteGGUF, case: str, key: str, value: Any):
    parameters = random_parameters(CASES[case][1], seed=0)
    with pytest.raises(InputError) as caught:
        open_gguf(write(write_gguf, case, parameters, **{key: value}))
    assert caught.value.field.startswith(CASES[case][0])
    assert "\n" not in str(caught.value)
