"""Every test that uses JAX sees 8 CPU devices. JAX starts here, so that no test can change that."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_num_cpu_devices", 8)
assert jax.device_count() == 8

# how fast this machine is today must not decide whether a test passes
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
