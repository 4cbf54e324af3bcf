"""Symmetric int8 on the device: the rows of a cache as they are written. Knows nothing about weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def quantise_rows(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[... D] -> int8 [... D] and its float32 scale [...]: the largest magnitude of a row is 127."""
    value = value.astype(jnp.float32)
    largest = jnp.max(jnp.abs(value), axis=-1)
    scale = jnp.where(largest > 0, largest / 127, 1.0)
    return jnp.round(value / scale[..., None]).astype(jnp.int8), scale
