"""The catalogue: exact counts, the paper's sizes, and a source for every field of every entry."""

from typing import Any

import pytest

from partita.errors import InputError
from partita.specs import BYTES, Chip, Model, catalogue, catalogue_chip, catalogue_model, model_names
from partita.specs.hardware import ClusterFamily, FamilyAxis

# Of models on Hugging Face the numbers that their safetensors files hold, a tied embedding counted once and
# of Gemma 3 the language model alone; of the others as commented.
PARAMETERS = {
    "palm-8b": 8_632_401_920,
    "palm-62b": 62_496_178_176,
    "palm-540b": 540_356_640_768,
    # 118 (2 E 48 128 + 2 E 48 128 + 3 E F) + V E, computed apart
    "palm-540b-multihead": 539_243_053_056,
    "mt-nlg-530b": 529_530_880_000,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "smollm2-135m": 134_515_008,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    # of the published 4,300,079,472, 12,187,325,040 and 27,432,406,640 the SigLIP tower and projector, which
    # hold 416,866,032 + 1152 E + 1152, are taken away
    "gemma-3-4b": 4_300_079_472 - 416_866_032 - 1152 * (2560 + 1),
    "gemma-3-12b": 12_187_325_040 - 416_866_032 - 1152 * (3840 + 1),
    "gemma-3-27b": 27_432_406_640 - 416_866_032 - 1152 * (5376 + 1),
    "gpt2-124m": 124_439_808,
    # 12 L E^2 of matrices, 13 L E + 2 E of biases and norms, (50257 + 2048) E of tables, computed apart
    "gpt-3-175b": 12 * 96 * 12288**2 + (13 * 96 + 2 + 50257 + 2048) * 12288,
    "gpt-neox-20b": 20_554_567_680,
    # the files hold 7,217,189,760, the tied table of 65024 x 4544 twice
    "falcon-7b": 7_217_189_760 - 65_024 * 4544,
    # 62 layers of 62,674,944 (six projections of MLA, three of the feed-forward, norms), computed apart
    "minicpm3-4b": 62 * 62_674_944 + 73_448 * 2560 + 2560,
}


def test_the_models_are_those_expected():
    assert set(model_names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_exact(name: str):
    assert catalogue_model(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3-70b", 320 * 1024),
        ("qwen3-8b", 144 * 1024),
        ("gemma-3-27b", 62 * 2 * 16 * 128 * 2),
        ("falcon-7b", 8 * 1024),
        ("minicpm3-4b", 62 * (256 + 32) * 2),
    ],
)
def test_what_the_cache_takes_for_a_token(name: str, bytes_per_token: int):
    assert catalogue_model(name).kv_elements_per_token * BYTES["bf16"] == bytes_per_token


def test_windows_bound_the_cache_of_most_layers():
    """Gemma 3 27B at its 131,072 tokens: 10 global layers, and 52 that keep 1024 tokens."""
    model = catalogue_model("gemma-3-27b")
    assert (model.global_layers, model.local_layers) == (10, 52)
    per_layer = 2 * 16 * 128
    assert model.kv_elements(131_072) == per_layer * (10 * 131_072 + 52 * 1024)
    assert catalogue_model("gemma-2-9b").kv_elements(8192) == 2 * 8 * 256 * 21 * (8192 + 4096)
    assert catalogue_model("mistral-7b-v0.1").kv_elements(32_768) == 32 * 2 * 8 * 128 * 4096


def test_the_kv_cache_of_a_multihead_model_is_3_terabytes():
    """Pope et al. 2022: batch 512 and context 2048 make a cache of 3 TB, three times the parameters."""
    elements = catalogue_model("palm-540b-multihead").kv_elements_per_token * 512 * 2048
    assert elements * BYTES["bf16"] == pytest.approx(3.04e12, rel=1e-3)


def test_multiquery_divides_the_cache_by_heads_and_head_size():
    multihead, multiquery = catalogue_model("palm-540b-multihead"), catalogue_model("palm-540b")
    assert multihead.kv_elements_per_token * 2 == multiquery.kv_elements_per_token * 48


def test_aliases_name_a_model_and_are_no_names_themselves():
    aliases = catalogue.model_aliases()
    assert catalogue_model("llama3-8b") is catalogue_model("llama-3-8b")
    assert set(aliases.values()) <= set(model_names())
    assert not set(aliases) & set(model_names())
    assert all(alias == alias.lower() for alias in aliases)


def test_case_does_not_matter():
    assert catalogue_model("PaLM-540B").name == "palm-540b"
    assert catalogue_chip("TPU-v4").name == "tpu-v4"


def test_an_unknown_model_is_named_with_what_is_near_and_what_there_is():
    with pytest.raises(InputError, match=r"palm-54b: unknown; did you mean palm-540b\? catalogue: .*smollm2"):
        catalogue_model("palm-54b")


def test_an_unknown_chip_is_named_with_what_there_is():
    with pytest.raises(InputError, match=r"chip: abacus: unknown; catalogue: tpu-v4, .*mi300x"):
        catalogue_chip("abacus")


def test_tpu_v4_figures():
    chip = catalogue_chip("tpu-v4")
    assert (chip.peak("bf16"), chip.peak("int8")) == (275e12, 275e12)
    assert (chip.hbm_bytes, chip.hbm_bandwidth) == (32 * 2**30, 1.2e12)


def test_a_format_the_chip_has_no_peak_for_is_refused():
    with pytest.raises(InputError, match="activations: f32: tpu-v4 has no peak for it; it has bf16, int8"):
        catalogue_chip("tpu-v4").peak("f32")


KINDS: tuple[catalogue.Kind, ...] = ("models", "chips", "clusters")
ENTRIES = [
    pytest.param(kind, name, entry, id=f"{kind}-{name}")
    for kind in KINDS
    for name, entry in catalogue._table(kind).items()
]


def _fields(entry: dict[str, Any]) -> set[str]:
    fields = set(entry) - {"aliases", "sources", "fabric"}
    return fields | {f"fabric.{field}" for axis in entry.get("fabric", []) for field in axis}


@pytest.mark.parametrize(("kind", "name", "entry"), ENTRIES)
def test_every_field_has_one_source(kind: catalogue.Kind, name: str, entry: dict[str, Any]):
    listed = [field.strip() for fields in entry["sources"] for field in fields.split(",")]
    assert sorted(listed) == sorted(_fields(entry))
    assert "config" not in entry
    texts = catalogue.sources(kind, name)
    assert set(texts) == _fields(entry)
    assert all(len(text) > 20 for text in texts.values())


@pytest.mark.parametrize(("kind", "name", "entry"), ENTRIES)
def test_no_field_is_left_to_a_default(kind: str, name: str, entry: dict[str, Any]):
    """A default has no source, so an entry states every field, but for those that do not apply to it."""
    if kind == "clusters":
        defaults = {f"fabric.{name}": field.default for name, field in FamilyAxis.model_fields.items()}
        defaults |= {name: field.default for name, field in ClusterFamily.model_fields.items()}
        left = set(defaults) - {"aliases", "fabric"}
    else:
        fields = (Model if kind == "models" else Chip).model_fields
        defaults = {name: field.default for name, field in fields.items()}
        left = set(defaults)
    left -= _fields(entry)
    # These say that there is no such thing, which needs no source; rotary pairs are halves all through.
    absent = {name for name in left if defaults[name] in (None, False, 1.0, "halves")}
    absent |= {"name"} | ({"rotary_base"} if entry.get("positions") != "rotary" else set())
    absent |= {"alibi_max_bias", "alibi_scale"} if entry.get("positions") != "alibi" else set()
    absent |= {"global_at"} if "global_period" in absent or "global_period" in entry else set()
    assert left <= absent


def test_every_family_has_its_chip_and_a_valid_example():
    for family in catalogue.cluster_families():
        assert catalogue_chip(family.chip).name == family.chip
        assert tuple(axis.size for axis in family.shaped(family.example)) == family.example


CHIPS = {
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7"),
    *("a100-40g", "a100-80g", "h100", "h200", "b200", "gb200", "l40s"),
    *("mi300x", "xeon-8480"),
}


def test_the_chips_are_those_expected_and_each_has_a_family():
    assert set(catalogue.chip_names()) == CHIPS
    assert {family.chip for family in catalogue.cluster_families()} == CHIPS


@pytest.mark.parametrize("name", sorted(CHIPS))
def test_figures_of_a_chip_are_of_one_order(name: str):
    """A figure with a slipped digit would leave these bands: FLOPs a byte, seconds to read all memory."""
    chip = catalogue_chip(name)
    assert 50 < chip.peak("bf16") / chip.hbm_bandwidth < 600
    assert 0.01 < chip.hbm_bytes / chip.hbm_bandwidth < (2 if name == "xeon-8480" else 0.1)
    assert 0 <= chip.runtime_bytes < 0.1 * chip.hbm_bytes
    assert chip.price_per_hour is None
    faster = chip.peak_flops.get("int8")
    assert faster is None or 1 <= faster / chip.peak("bf16") < 2.1
    slower = chip.peak_flops.get("f32")
    assert slower is None or slower < chip.peak("bf16") / 3


def test_no_int8_figure_is_made_up():
    with pytest.raises(InputError, match="activations: int8: tpu-v7 has no peak for it; it has bf16"):
        catalogue_chip("tpu-v7").peak("int8")
