"""Collectives that are timed: they are what they say, run as often as they say, and cost what they send."""

import jax
import pytest
from tests.measure.calibrate.made import cluster, device, gpus, truth

from partita.measure.calibrate import collectives
from partita.measure.calibrate.collectives import Collective, estimated, granule
from partita.measure.calibrate.machine import machine
from partita.measure.counts import count_hlo
from partita.specs import Constant
from partita.specs.profile import COLLECTIVES

FOUR = machine(jax.devices()[:4])


@pytest.mark.parametrize("chips", [2, 4])
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_the_compiled_program_sends_what_is_counted_as_often(kind, chips, monkeypatch):
    texts = []
    compile = jax.stages.Lowered.compile

    def seen(lowered, *args, **kwargs):
        compiled = compile(lowered, *args, **kwargs)
        texts.append(compiled.as_text())
        return compiled

    monkeypatch.setattr(jax.stages.Lowered, "compile", seen)
    collective = Collective(kind, 0, chips, 16 * granule(kind, chips))
    jax.block_until_ready(collectives.program(FOUR, collective)())
    found = count_hlo(texts[-1], "xy", (4 // chips, chips))
    assert found.by_kind() == {kind: collective.times * collective.sent_bytes}
    assert sum(found.messages.values()) == collective.times


def test_sent_bytes_are_those_of_rings():
    sent = {kind: Collective(kind, 0, 4, 4096).sent_bytes for kind in COLLECTIVES}
    assert sent == {
        "all-gather": 3 * 4096,  # every other chip's part passes
        "reduce-scatter": 3 * 1024,
        "all-reduce": 2 * 3 * 1024,
        "all-to-all": 3 * 1024,
        "collective-permute": 4096,
    }
    copied = {kind: Collective(kind, 0, 4, 4096).copied_bytes for kind in COLLECTIVES}
    assert copied == {
        "all-gather": 4 * 4096,
        "reduce-scatter": 4096,
        "all-reduce": 2 * 4096,
        "all-to-all": 4096,
        "collective-permute": 4096,
    }


@pytest.mark.parametrize("sizes", [(8,), (6,), (2, 4), (4, 4), (1,)])
def test_every_axis_has_every_kind_and_arrays_divide(sizes):
    places = [(at // (sizes[-1]), at % sizes[-1], 0) for at in range(sizes[0] * sizes[-1])]
    devices = gpus(1, sizes[0]) if len(sizes) == 1 else [device("tpu", 0, 0, at) for at in places]
    found = list(collectives.settings(machine(devices)))
    assert {(each.axis, each.kind) for each in found} == {
        (axis, kind) for axis, size in enumerate(sizes) if size > 1 for kind in COLLECTIVES
    }
    assert len(set(found)) == len(found)
    assert all(each.bytes % granule(each.kind, each.chips) == 0 for each in found)
    assert {each.chips for each in found} <= {2, 4, 6, 8}


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_estimates_have_a_start_hops_and_bytes(kind):
    here = machine(gpus(2, 4))
    on, profile = cluster(here), truth(here)
    for axis, (level, rate) in enumerate((("network", 2e10), ("switch", 2e11))):
        collective = Collective(kind, axis, here.shape[axis], 2**20)
        share = profile.link("share", level, kind)
        start = profile.link("message_seconds", level, kind)
        hops = {"collective-permute": 1, "all-reduce": 2 * (collective.chips - 1)}
        wait = profile.link("hop_seconds", level, kind) * hops.get(kind, collective.chips - 1)
        each = collective.sent_bytes / rate / share + start + wait
        assert estimated(collective, on, profile) == pytest.approx(
            collective.times * each + profile.value("step_seconds")
        )


def test_threads_copy_their_own_shard_too():
    here = machine([device("cpu", i) for i in range(4)])
    on, profile = cluster(here), truth(here)
    none = {**profile.constants, "switch/own_share": Constant(value=0.0, fixed="made")}
    collective = Collective("all-gather", 0, 4, 2**20)
    more = estimated(collective, on, profile) - estimated(
        collective, on, profile.model_copy(update={"constants": none})
    )
    rate = on.fabric[0].bandwidth * profile.link("share", "switch", "all-gather")
    assert more == pytest.approx(collective.times * 2**20 / rate)
