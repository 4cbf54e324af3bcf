"""Model FLOPs utilisation: of what the model needs, by hand, and never above what there is."""

import pytest

from partita.cost.prediction import Setting, predict
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_roles
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.profile import Phase


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-2b", "smollm2-135m", "minicpm3-4b"])
def test_mfu_is_never_above_one(name: str, phase: Phase):
    """A prefill that compute limits comes near it."""
    on = parse_cluster("h100:1x2")
    for prompt, batch, chunk in ((2048, 64, None), (33, 3, None), (700, 8, 256)):
        workload = Workload(output=4, prompt=prompt, batch=batch, chunk=chunk)
        here = Setting(catalogue_model(name), on, Mesh.of((2,)), Formats(), workload)
        for ffn, attention in (("wg-x", "batch"), ("ws1d", "heads")):
            found = predict(here, phase, parse_roles(ffn, attention, "x"))
            assert 0 < found.bound_mfu <= 1
            over_all = 2 * found.step.ledger.total("flops")
            assert found.needed_flops <= over_all * (1 + 1e-12)


def test_a_prefill_needs_no_unembedding_of_all_its_tokens():
    """Llama 3 8B by hand: matrices of every token, the unembedding of one, attention under the mask."""
    workload = Workload(prompt=2048, output=4, batch=64)
    model, on = catalogue_model("llama-3-8b"), parse_cluster("h100:1x2")
    here = Setting(model, on, Mesh.of((2,)), Formats(), workload)
    found = predict(here, "prefill", parse_roles("wg-x", "batch", "x"))
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    pairs = 2048 * 2049 // 2
    needed = 64 * (2 * layers * 2048 + 2 * 4096 * 128_256 + 4 * 32 * 4096 * pairs)
    assert found.needed_flops == found.phase_flops == needed == 1_900_057_695_617_024
    assert found.paper_mfu > 1 > found.bound_mfu
