"""Plans in other engines' terms: the options word for word, and by name what has none."""

import json
from dataclasses import replace
from typing import Any

import pytest
from jax.sharding import PartitionSpec
from tests.planner.pairs import pair_of
from tests.planner.settings import palm, setting

from partita.advice.gpu_engines import EngineFlags
from partita.advice.jax_engines import other_engines, other_engines_json, partition_specs
from partita.cost.prediction import Setting
from partita.planner.pair import Pair
from partita.sharding.mesh import parse_mesh
from partita.sharding.spec import Sharding, parse
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def terms(pair: Pair) -> dict[str, EngineFlags]:
    found = other_engines(pair)
    for each in found:
        assert each.expressible == bool(each.command) == bool(each.options)
        assert each.source.startswith("https://")
    return {each.engine: each for each in found}


def llama(layout: str, mesh: str = "x=8", decode: str | None = None, formats: Formats | None = None, **sizes):
    """Llama 3 70B on 8 or 16 GPUs."""
    shape = parse_mesh(mesh)
    workload = Workload(**({"prompt": 1000, "output": 200, "batch": 32} | sizes))
    on = parse_cluster(f"h100:{shape.chips // 8}x8")
    given = Setting(catalogue_model("llama-3-70b"), on, shape, formats or Formats(), workload)
    return pair_of(given, layout, decode)


def test_tensor_parallelism_is_every_engine_s():
    found = terms(llama("ws1d/heads"))
    assert found["vLLM"].command == (
        "vllm serve MODEL --tensor-parallel-size 8 --max-num-seqs 32 --max-model-len 1200 --dtype bfloat16 "
        "--kv-cache-dtype bfloat16 --no-enable-chunked-prefill --max-num-batched-tokens 32000"
    )
    assert found["SGLang"].command == (
        "python -m sglang.launch_server --model-path MODEL --tp-size 8 --max-running-requests 32 "
        "--context-length 1200 --chunked-prefill-size -1 --dtype bfloat16 --kv-cache-dtype auto"
    )
    assert found["TensorRT-LLM"].command == (
        "trtllm-serve MODEL --tp_size 8 --max_batch_size 32 --max_num_tokens 32000 --max_seq_len 1200"
    )
    assert found["MaxText"].options["ici_tensor_parallelism"] == "8"
    assert found["MaxText"].command.startswith("ici_tensor_parallelism=8 per_device_batch_size=4 ")
    assert not any(each.differs for each in found.values())


def test_replicas_are_data_parallelism_between_nodes():
    found = terms(llama("x=replica,y=f/x=batch,y=heads", "x=2,y=8"))
    assert found["vLLM"].options["--data-parallel-size"] == "2"
    assert found["vLLM"].options["--tensor-parallel-size"] == "8"
    assert found["vLLM"].options["--max-num-seqs"] == "16"
    assert found["SGLang"].options["--dp-size"] == "2"
    assert "--enable-dp-attention" not in found["SGLang"].options
    assert found["MaxText"].options["dcn_data_parallelism"] == "2"
    assert found["MaxText"].options["ici_tensor_parallelism"] == "8"
    assert "start it 2 times" in found["TensorRT-LLM"].cannot[0]


def test_attention_over_batch_is_dp_attention():
    found = terms(llama("ws1d/batch"))
    assert found["SGLang"].options["--dp-size"] == "8"
    assert "--enable-dp-attention" in found["SGLang"].options
    assert "kept 8 times" in found["SGLang"].differs[0]
    assert found["TensorRT-LLM"].options["config.yaml:enable_attention_dp"] == "true"
    assert "--config config.yaml" in found["TensorRT-LLM"].command
    assert found["vLLM"].cannot == (
        "attention over batch with tensor-parallel weights: vLLM has that for the experts of MoE only",
    )
    assert "attention over batch" in found["MaxText"].cannot[0]


def test_part_of_the_chips_over_batch_is_only_sglang_s():
    found = terms(llama("x=f,y=f/x=batch,y=heads", "x=2,y=4"))
    assert (found["SGLang"].options["--tp-size"], found["SGLang"].options["--dp-size"]) == ("8", "2")
    assert "enable_attention_dp takes all 8 ways" in found["TensorRT-LLM"].cannot[0]


def test_attention_over_context_in_decode_is_vllm_s_within_its_limit():
    """At most tensor-parallel size over KV heads: 16 / 8."""
    layouts = [f"x=f,y=f/x={role},y=heads" for role in ("heads", "context")]
    within = terms(llama(layouts[0], "x=2,y=8", decode=layouts[1]))
    assert within["vLLM"].options["--decode-context-parallel-size"] == "2"
    assert within["vLLM"].options["--tensor-parallel-size"] == "16"
    assert any("context" in text for text in within["SGLang"].cannot)
    beyond = terms(llama(layouts[0], "x=2,y=4", decode=layouts[1]))
    assert beyond["vLLM"].cannot == (
        "attention over context 2 ways: decode context parallelism takes at most tensor-parallel size / "
        "KV heads, 8/8",
    )


def test_a_layout_for_each_phase_is_nobody_s():
    pair = pair_of(palm(batch=64), "wg-xyz/batch", "ws2d/batch")
    for engine, found in terms(pair).items():
        assert not found.expressible
        text = "; ".join(found.cannot)
        assert "a layout for each phase (prefill wg-xyz/batch, decode ws2d/batch)" in text
        assert "2D weight-stationary" in text
        assert ("weight-gathered prefill (64 ways)" in text) == (engine != "MaxText")


def test_weights_gathered_over_d_model_are_fsdp():
    found = terms(llama("x=e-gathered,y=f/x=batch,y=heads", "x=2,y=4"))
    assert found["MaxText"].options["ici_fsdp_parallelism"] == "2"
    assert found["MaxText"].options["ici_tensor_parallelism"] == "4"
    assert "weight-gathered" in found["vLLM"].cannot[0]
    gathered_f = terms(llama("x=f-gathered,y=f/x=batch,y=heads", "x=2,y=4"))
    assert "weights gathered over d_ff 2 ways" in gathered_f["MaxText"].cannot[0]


def test_heads_that_do_not_divide_are_padded_by_nobody_else():
    found = terms(pair_of(setting("smollm2-135m", "h100:1x8", None, batch=8), "ws1d/heads"))
    assert found["vLLM"].cannot == ("9 heads over 8 chips: they must divide, the engine does not pad them",)
    assert "9 heads over 8 chips" in found["MaxText"].cannot[0]


def test_formats_are_said_as_each_engine_has_them():
    found = terms(llama("ws1d/heads", formats=Formats(weights="int8", kv="int8")))
    assert found["vLLM"].options["--kv-cache-dtype"] == "int8_per_token_head"
    assert found["SGLang"].options["--kv-cache-dtype"] == "fp8_e4m3"
    assert found["TensorRT-LLM"].options["config.yaml:kv_cache_config"] == "{dtype: fp8}"
    assert found["MaxText"].options["quantization"] == "int8"
    for engine in ("vLLM", "SGLang", "TensorRT-LLM"):
        assert "already quantised" in found[engine].differs[0]


def test_chunks_are_the_batched_tokens():
    found = terms(llama("ws1d/heads", chunk=256, prefix=100, batch=4))
    assert "--enable-chunked-prefill" in found["vLLM"].options
    assert found["vLLM"].options["--max-num-batched-tokens"] == "1024"
    assert "--enable-prefix-caching" in found["vLLM"].options
    assert found["SGLang"].options["--chunked-prefill-size"] == "1024"
    assert "--enable_chunked_prefill" in found["TensorRT-LLM"].options


# -- JAX ------------------------------------------------------------------------------------------------


def dims(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    """A spec with every dim written out."""
    parts = [() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in spec]
    return [*parts, *[()] * (rank - len(parts))]


def axes_of(sharding: Sharding) -> list[tuple[str, ...]]:
    return [tuple(axes) for axes in sharding.axes]


@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.parametrize("layouts", [("ws2d/heads", "ws2d/batch"), ("wg-xyz/batch", "ws2d/batch")])
def test_partition_specs_are_those_of_the_shardings(layouts: tuple[str, str], weights: Any):
    pair = pair_of(palm(Formats(weights=weights), batch=64), *layouts)
    specs = partition_specs(pair)
    assert specs["mesh"] == {"x": 4, "y": 4, "z": 4}
    layout = pair.decode.layout
    stored = layout.storage.weights(pair.decode.setting.model)
    if (
        weights == "int8"
    ):  # of every matrix a scale for each output channel, on the chips that have the channel
        stored |= {"q_scale": "K G_yz D", "kv_scale": "M K D", "o_scale": "E_x"}
        stored |= {"ffn_in_scale": "M F_yz", "ffn_out_scale": "E_x", "embed_scale": "V_yz"}
    assert specs["weights"].keys() == stored.keys()
    for name, text in stored.items():
        sharding, spec = parse(text), eval(specs["weights"][name]["spec"])
        assert dims(spec, len(sharding.dims)) == axes_of(sharding)
    for name, text in (("keys", layout.keys), ("values", layout.cache)):
        assert dims(eval(specs["decode"][name]["spec"]), 4) == axes_of(parse(text))
    residual = eval(specs["prefill"]["residual"]["spec"])
    assert dims(residual, 3) == axes_of(parse(pair.prefill.layout.residual))


def test_queries_of_a_split_cache_are_whole_in_decode():
    specs = partition_specs(pair_of(palm(batch=1), "ws2d/context", "ws2d/context"))
    assert {specs[phase]["values"]["sharding"].split()[2][:2] for phase in ("prefill", "decode")} == {"S_"}
    assert sorted(specs["prefill"]["queries"]["sharding"].split()[1]) == sorted("L_xyz")
    assert specs["decode"]["queries"]["sharding"].split()[1] == "L"


def test_json_holds_jax_and_every_engine():
    written = json.loads(json.dumps(other_engines_json(llama("ws1d/heads"))))
    assert [engine["engine"] for engine in written["engines"]] == [
        "vLLM",
        "SGLang",
        "TensorRT-LLM",
        "MaxText",
    ]
    assert written["jax"]["weights"]["ffn_out"]["spec"] == "PartitionSpec('x')"


def test_float32_weights_have_no_word_of_their_own():
    (vllm, *_) = other_engines(llama("ws1d/heads", formats=Formats(weights="f32")))
    assert vllm.differs == ("weights f32: vLLM keeps them in the format of activations",)
    same = other_engines(llama("ws1d/heads", formats=Formats(weights="f32", activations="f32")))
    assert same[0].options["--dtype"] == "float32"
    assert same[0].differs == ()


def test_stages_are_pipeline_parallelism():
    pair = llama("ws1d/heads")
    staged = replace(
        pair,
        decode=replace(pair.decode, setting=replace(pair.decode.setting, stages=2)),
        prefill=replace(pair.prefill, setting=replace(pair.prefill.setting, stages=2)),
    )
    found = terms(staged)
    assert found["vLLM"].options["--pipeline-parallel-size"] == "2"
    assert found["SGLang"].options["--pp-size"] == "2"
    assert found["TensorRT-LLM"].options["--pp_size"] == "2"
    assert found["MaxText"].cannot == ("pipeline stages: MaxText's are for training",)
