"""Products of floats with matrices in any format on the CPU: equal to NumPy's, however they are computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita.engine.cpu import product

SIZES = {"B": 2, "L": 1, "E": 6, "K": 3, "G": 2, "D": 4, "M": 2, "F": 10, "V": 12, "S": 5}
TEXTS = ("BLE,EKGD->BLKGD", "BLE,EMKD->MBLKD", "BLKGD,KGDE->BLE", "BLF,FE->BLE", "BLE,VE->BLV")
CACHED = ("BLKGD,BKDS->BKLGS", "BKLGS,BKSD->BLKGD")


def _operands(text: str, sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(len(text))
    left, right = text.split("->")[0].split(",")
    return random.standard_normal([sizes[d] for d in left]), random.standard_normal([sizes[d] for d in right])


@pytest.mark.parametrize("text", [*TEXTS, *CACHED])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [5, 6])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_product_on_the_cpu_is_the_einsum_of_its_operands(text: str, rows: int, length: int, dtype: str):
    sizes = SIZES | {"B": rows, "E": length, "F": length + 4}
    a, b = _operands(text, sizes)
    matrix = jnp.asarray(np.round(40 * b) if dtype == "int8" else b, dtype)
    expected = np.einsum(text, a, np.asarray(matrix, np.float64))
    found = jax.jit(lambda a, b: product(text, a, b, jnp.float32))(a.astype(np.float32), matrix)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("rows", [1, 2])
def test_no_matrix_is_copied_to_be_multiplied(rows: int):
    a, b = jnp.ones((rows, 1, 3, 2, 32)), jnp.ones((3, 2, 32, 256))
    run = jax.jit(lambda a, b: product("BLKGD,KGDE->BLE", a, b, jnp.float32))
    analysis = run.lower(a, b).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < b.nbytes / 4
