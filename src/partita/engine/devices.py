"""Which devices a mesh runs on, and making CPU devices where there is no accelerator."""

from __future__ import annotations

import contextlib

import jax

from partita.errors import InputError

_MOST = 4096
"""CPU devices are threads: far more would only hang the machine."""


def devices_for(count: int, ask: int | None = None) -> list:
    """The first `count` devices; with `ask` (or no accelerator) CPU devices are made before first use.

    Raises InputError (field "mesh") where the mesh's size is not the device count.
    """
    if ask is not None and ask < 1:
        raise InputError("devices", ask, "1 or more devices are accepted")
    if max(ask or 0, count) > _MOST:
        raise InputError("devices", ask or count, f"up to {_MOST} devices are accepted")
    if ask is not None and ask != count:
        raise InputError("mesh", f"{count} chips", f"the mesh's size must be the device count, {ask}")
    wanted = ask or count
    with contextlib.suppress(RuntimeError):  # JAX runs already; what it has must do
        jax.config.update("jax_num_cpu_devices", wanted)
    found = jax.devices()
    if len(found) < wanted:
        raise InputError("mesh", f"{count} chips", f"the mesh's size must be the device count, {len(found)}")
    return found[:wanted]
