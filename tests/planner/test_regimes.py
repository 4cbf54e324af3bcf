"""The paper's regimes: their figures, and where each comes from."""

import pytest

from partita.cost.prediction import Setting, predict
from partita.errors import InputError
from partita.planner.pair import OBJECTIVES, Pair
from partita.planner.regimes import REGIMES, Regime, regime
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster


def test_the_regimes_are_the_papers():
    figures = {
        name: (r.prompt, r.prefix, r.output, r.batch, r.prefill_batch, r.objective, r.weights)
        for name, r in REGIMES.items()
    }
    assert figures == {
        "interactive": (64 + 1920, 1920, 64, 64, 1, "latency", "int8"),
        "long-context": (32_768 - 64, 0, 64, 128, 1, "context", "bf16"),
        "offline": (1984, 0, 64, 512, 512, "throughput", "bf16"),
    }


@pytest.mark.parametrize("preset", REGIMES.values(), ids=lambda preset: preset.name)
def test_every_figure_has_its_source(preset: Regime):
    named = [field for fields in preset.sources for field in fields.split(", ")]
    expected = {"prompt", "output", "batch", "prefill_batch", "objective", "weights", "kv"}
    assert set(named) - {"prefix"} == expected
    assert len(named) == len(set(named))
    assert ("prefix" in named) == (preset.prefix > 0)
    assert preset.objective in OBJECTIVES
    for source in preset.sources.values():
        assert "arXiv 2211.05102" in source or source.startswith("ours: ")


def priced(name: str, prefill: str, decode: str) -> Pair:
    """PaLM 540B on the paper's 64 chips, in layouts of Table 2."""
    preset = regime(name)
    mesh = Mesh("xyz", (4, 4, 4))
    formats = Formats(weights=preset.weights, kv=preset.kv)
    sizes = ("prompt", "prefix", "output", "batch", "prefill_batch")
    workload = Workload(**{size: getattr(preset, size) for size in sizes})
    cluster = parse_cluster("tpu-v4:4x4x4")
    setting = Setting(catalogue_model("palm-540b"), cluster, mesh, formats, workload)
    layouts = parse_layout(prefill, mesh.axes), parse_layout(decode, mesh.axes)
    storage = plan_storage(setting.model, mesh, *layouts)
    return Pair(
        predict(setting, "prefill", layouts[0], storage), predict(setting, "decode", layouts[1], storage)
    )


def test_no_bound_is_above_what_the_paper_measured():
    chat = priced("interactive", "ws2d/heads", "ws2d/batch")
    assert 0.6 < chat.latency_seconds < 1.9
    offline = priced("offline", "wg-xyz/batch", "ws2d/batch")
    seconds = offline.prefill_seconds + offline.decode.total_seconds
    flops = 2 * 540e9 * 512 * (1984 + 64)
    assert 0.73 < flops / (64 * 275e12 * seconds) < 1
    long = priced("long-context", "ws2d/heads", "ws2d/batch")
    assert long.decode.fits
    assert long.decode.max_context > 32_768


@pytest.mark.parametrize(
    ("name", "hint"), [("offlin", "did you mean offline?"), ("chat", "accepted are interactive"), ("", "")]
)
def test_an_unknown_regime_is_refused_by_name(name: str, hint: str):
    with pytest.raises(InputError, match="unknown; ") as caught:
        regime(name)
    assert (caught.value.field, caught.value.value) == ("regime", name)
    assert hint in caught.value.message
    assert "interactive, long-context, offline" in caught.value.message
