"""Every test that uses JAX sees 8 CPU devices. JAX starts here, so that no test can change that."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_num_cpu_devices", 8)
assert jax.device_count() == 8
