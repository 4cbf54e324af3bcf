"""Plans how a large Transformer is split over chips for inference, and runs what it planned.

>>> import partita
>>> plan = partita.plan("palm-540b", on="tpu-v4:4x4x4", prompt=2048, output=64, batch=64)
>>> str(plan.decode.layout.roles)
'ws2d/batch'

`partita.plan` needs no JAX; `partita.Engine` imports it on first use.
"""

from __future__ import annotations

from partita.errors import InputError, NotFiniteError

TYPE_CHECKING = False  # typing takes longer to import than all else before the command can be stopped
if TYPE_CHECKING:
    from typing import Any

    from partita.api import plan
    from partita.engine.engine import Engine
    from partita.engine.shapes import Capacity
    from partita.specs.sampling import Sampling

__all__ = ["Capacity", "Engine", "InputError", "NotFiniteError", "Sampling", "plan"]


def __getattr__(name: str) -> Any:
    if name == "plan":
        from partita.api import plan

        return plan
    if name == "Engine":
        from partita.engine.engine import Engine

        return Engine
    if name == "Capacity":
        from partita.engine.shapes import Capacity

        return Capacity
    if name == "Sampling":
        from partita.specs.sampling import Sampling

        return Sampling
    raise AttributeError(f"module 'partita' has no attribute {name!r}")
