"""Continuous batching in closed form, against single predictions of its two phases."""

import numpy as np
import pytest

from partita.cost.prediction import Setting, predict
from partita.cost.served import Load, Served
from partita.errors import InputError
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import parse_roles
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.catalogue import profile
from partita.specs.hardware import MEMORY_UTILIZATION


def setting(model="llama-3.1-8b", chips=4, workload=None, stages=1, mesh=None, **formats):
    return Setting(
        catalogue_model(model),
        parse_cluster(f"h100:1x{chips}"),
        parse_mesh(mesh or f"x={chips}"),
        Formats(**{"reduce": "bf16", **formats}),
        workload or Workload(prompt=1, output=1, batch=1),
        stages,
    )


def served(load, multiply=None, **options):
    found = setting(**options)
    return Served(found, parse_roles("ws1d", "heads", found.mesh.axes), load, multiply)


@pytest.mark.parametrize(("prompt", "output", "clients"), [(1024, 128, 8), (4096, 512, 64)])
def test_a_decode_step_and_its_share_of_prefills(prompt, output, clients):
    roles = parse_roles("ws1d", "heads", "x")
    decode = predict(
        setting(workload=Workload(prompt=prompt, output=output, batch=clients, context=prompt + output // 2)),
        "decode",
        roles,
    )
    prefill = predict(setting(workload=Workload(prompt=prompt, output=output, batch=1)), "prefill", roles)
    found = served(Load(prompt, output, clients))
    assert found.bound_seconds() == pytest.approx(
        decode.step_seconds + clients / output * prefill.step_seconds
    )
    assert decode.estimate is not None
    assert prefill.estimate is not None
    assert found.estimated_seconds(profile("h100")) == pytest.approx(
        decode.estimate.step_seconds + clients / output * prefill.estimate.step_seconds
    )


def test_loads_priced_in_one_pass_are_those_priced_alone():
    loads = [(1024, 128, 8), (1024, 512, 128), (4096, 256, 32)]
    prompt, output, clients = (np.array(column, float) for column in zip(*loads, strict=True))
    together = served(Load(prompt, output, clients))
    alone = [served(Load(*load)) for load in loads]
    bounds = [float(each.bound_seconds()) for each in alone]
    np.testing.assert_allclose(together.bound_seconds(), bounds)
    h100 = profile("h100")
    estimates = [float(each.estimated_seconds(h100)) for each in alone]
    np.testing.assert_allclose(together.estimated_seconds(h100), estimates)


def test_no_more_sequences_than_the_memory_holds():
    roomy = served(Load(1024, 128, 128), model="qwen3-32b", chips=2)
    assert roomy.sequences == 128
    full = served(Load(4096, 512, 128), model="qwen3-32b", chips=2)
    chip = full.setting.cluster.chip
    room = MEMORY_UTILIZATION * chip.hbm_bytes - chip.runtime_bytes

    def needed(sequences):
        return full.decode.weight_bytes + full.decode.kv_bytes / full.sequences * sequences

    assert full.sequences < 128
    assert needed(full.sequences) <= room < needed(full.sequences + 2)
    # the others wait, and do not slow it down
    assert served(Load(4096, 512, 256), model="qwen3-32b", chips=2).bound_seconds() == pytest.approx(
        full.bound_seconds(), rel=0.02
    )


def test_matmuls_of_8_bits_go_by_their_own_peak_and_share():
    load = Load(4096, 128, 32)
    formats = {"weights": "int8", "kv": "int8", "model": "qwen3-32b"}
    wide, narrow = served(load, **formats), served(load, "int8", **formats)
    h100 = profile("h100")
    assert narrow.peaks.flops == pytest.approx(2 * wide.peaks.flops, rel=1e-3)
    assert narrow.bound_seconds() < wide.bound_seconds()
    assert narrow.bound_seconds() < narrow.estimated_seconds(h100) < wide.estimated_seconds(h100)
    slow = h100.constants["int8_matmul_share"].model_copy(update={"value": 0.25, "low": 0.2})
    slower = h100.model_copy(update={"constants": h100.constants | {"int8_matmul_share": slow}})
    assert narrow.estimated_seconds(slower) > narrow.estimated_seconds(h100)
    assert wide.estimated_seconds(slower) == wide.estimated_seconds(h100)


def test_what_cannot_be_served():
    with pytest.raises(InputError, match="concurrency: 8: not one sequence fits the memory of h100:1x1"):
        served(Load(1024, 128, 8), model="llama-3.1-70b", chips=1).bound_seconds()
    with pytest.raises(InputError, match="stages: 2: "):
        served(Load(1024, 128, 8), chips=4, mesh="x=2", stages=2).bound_seconds()
