"""Which devices a mesh runs on, and making CPU devices where there is no accelerator.

CPU devices are made once, as JAX starts: as many as the first mesh has, unless the user has said how many.
"""

from __future__ import annotations

import contextlib
import os

import jax

from partita.errors import InputError

_MOST = 4096
"""CPU devices are threads: far more would only hang the machine."""
_FLAG = "--xla_force_host_platform_device_count"


def devices_for(count: int, ask: int | None = None) -> list:
    """The first `count` of JAX's devices; where JAX has not started, so many CPU devices are made.

    What the user has said of these, by XLA_FLAGS, JAX_NUM_CPU_DEVICES or `jax.config`, is left as it is. With
    `ask` the count must be that. Raises InputError (field "devices" or "mesh") where there are fewer devices.
    """
    if ask is not None and ask < 1:
        raise InputError("devices", ask, "1 or more devices are accepted")
    if max(ask or 0, count) > _MOST:
        raise InputError("devices", ask or count, f"up to {_MOST} devices are accepted")
    if ask is not None and ask != count:
        raise InputError("mesh", f"{count} chips", f"the mesh's size must be the device count, {ask}")
    if jax.config.values["jax_num_cpu_devices"] == -1 and _FLAG not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX runs already
            jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices()
    if len(found) < count:
        platform = found[0].platform
        there = f"up to {len(found)} are accepted: JAX has so many {platform} devices"
        more = f", and makes no more once it runs; start Python with JAX_NUM_CPU_DEVICES={count}"
        raise InputError("mesh", f"{count} chips", there + (more if platform == "cpu" else ""))
    return found[:count]
