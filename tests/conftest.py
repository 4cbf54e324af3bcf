"""Every test that uses JAX sees 8 CPU devices. JAX starts here, so that no test can change that."""

import os

from hypothesis import HealthCheck, settings
from tests.sizes import MANY, USUAL

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PARTITA_CACHE"] = "none"  # nothing that a test compiles is kept for the user

import jax

# A step is compiled for a few runs of it: its machine code is made quickly rather than well, which takes less
# than half of the time. What it moves and holds is settled before that.
QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
PATIENT: list[str] = []
if jax.__version_info__ < (0, 11):  # choices that later releases may not offer
    QUICK.append("--xla_cpu_use_fusion_emitters=false")
    # devices that wait for one another on a busy machine are not taken for stuck after 40 seconds
    PATIENT.append("--xla_cpu_collective_call_terminate_timeout_seconds=600")

given = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = " ".join([*(QUICK if given is None else [given]), *PATIENT])
jax.config.update("jax_num_cpu_devices", 8)
assert jax.device_count() == 8
if given is None:  # processes that tests start compile as users' do
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = given

# how fast this machine is today must not decide whether a test passes
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", untimed, max_examples=USUAL)
settings.register_profile("full", untimed, max_examples=MANY)
settings.load_profile("usual")
