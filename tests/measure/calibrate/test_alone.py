"""Matmuls, reads and steps that are timed: right results, right counts, and small enough for any chip."""

import jax
import numpy as np
import pytest
from tests.measure.calibrate.made import cluster, gpus, truth

from partita.cost.links import mesh_links
from partita.cost.roofline import peaks
from partita.measure.calibrate import layers, matmul, memory
from partita.measure.calibrate.machine import machine
from partita.measure.calibrate.matmul import Matmul
from partita.measure.calibrate.memory import MemoryRead
from partita.sharding.mesh import Mesh
from partita.specs.formats import BYTES, Formats

FOUR = machine(jax.devices()[:4])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_device_multiplies_its_rows_by_all_layers(dtype):
    found = matmul.program(FOUR, Matmul(3, 16, 5, dtype))()
    assert found.shape == (4 * 3, 16)
    assert len(found.sharding.device_set) == 4
    np.testing.assert_array_equal(np.asarray(found, np.float32), 0.5)  # 16 times 1/16 of it, and so again


def test_every_device_reads_its_matrix_again_and_again():
    found = memory.program(FOUR, MemoryRead(16, 7))()
    assert found.shape == (4, 16)
    np.testing.assert_array_equal(found, 1.0)
    assert MemoryRead(16, 7).bytes == 16 * 16 * 4


def test_a_matmul_has_its_flops_weights_and_activations():
    entry = Matmul(3, 16, 5, "bf16").entry
    assert entry.flops == entry.needed_flops == 2 * 3 * 16 * 16
    assert (entry.weight_bytes, entry.moved_bytes, entry.second) == (16 * 16 * 2, 2 * 3 * 16 * 2, 16 * 16)


def test_a_matmul_takes_the_longer_of_arithmetic_and_memory():
    here = machine(gpus(1, 1))
    on, profile = cluster(here), truth(here)
    formats = Formats(weights="bf16", activations="bf16", kv="bf16")
    rates = peaks(on.chip, formats, mesh_links(Mesh.of(on.shape), on))
    step = profile.value("step_seconds")
    one, many = Matmul(1, 4096, 4, "bf16"), Matmul(8192, 4096, 4, "bf16")
    read = 4096 * 4096 * 2 + 0.5 * 2 * 4096 * 2
    assert matmul.estimated(one, rates, profile) == pytest.approx(4 * read / (2e12 * 0.6) + step)
    work = 2 * (8192 + 100) * 4096 * 4096
    assert matmul.estimated(many, rates, profile) == pytest.approx(4 * work / (3e14 * 0.8) + step)


def test_all_that_is_held_at_once_fits_an_accelerator_of_16_gb():
    """Weights of replicated layouts are whole on every chip, beside those of the others."""
    for each in (1, 8):
        here = machine(gpus(1, each))
        held = sum(read.bytes for read in memory.settings(here))
        held += sum(m.layers * m.width**2 * BYTES[m.dtype] for m in matmul.settings(here))
        models, most = {}, 0
        for step in layers.settings(here):
            used = step.predicted(cluster(here)).run.held
            models[step.model, str(step.roles)] = used.weights
            held += used.kv if step.phase == "decode" else 0
            most = max(most, used.activations)
        assert held + sum(models.values()) + 2 * most < 14e9


def test_steps_differ_in_layout_and_size_and_one_device_has_one_layout():
    found = list(layers.settings(FOUR))
    assert len({str(step.roles) for step in found}) == 5
    assert len({(step.phase, step.batch, step.tokens) for step in found}) == 4
    assert {step.formats.weights for step in found} == {"f32"}
    alone = list(layers.settings(machine(gpus(1, 1))))
    assert len({str(step.roles) for step in alone}) == 1
    assert {step.formats.weights for step in alone} == {"bf16"}
