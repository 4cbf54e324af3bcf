"""Which number formats a model runs in: as a plan or a user says, and else what the devices are fast in.

CPU devices compute in float32: XLA's CPU backend runs a decode step of SmolLM2 in bfloat16 in up to twice the
time (`bench/engine.py` measures it). Other devices compute in bfloat16. Knows nothing about layouts.
"""

from __future__ import annotations

from partita.errors import InputError
from partita.specs.formats import Float, Formats

DTYPES = ("auto", "f32", "bf16")


def number_formats(
    dtype: str,
    weights: str | None,
    kv: str | None,
    platform: str,
    planned: Formats | None = None,
) -> Formats:
    """The formats of a run on devices of a platform, such as "cpu".

    dtype: of activations, and of weights and cache where these are not int8; "auto" for what is planned, or
    else fast. On CPU devices that is float32 whatever is planned, but for what the plan has in int8.
    weights, kv: "int8", or None: int8 where the plan has it. Raises InputError for others.
    """
    if dtype not in DTYPES:
        raise InputError("dtype", dtype, f"accepted are {', '.join(DTYPES)}")
    for field, value in (("weights", weights), ("kv", kv)):
        if value not in (None, "int8"):
            raise InputError(field, value, "int8 is accepted; without it they are in dtype")
    if dtype == "auto" and planned is not None and platform != "cpu":
        return planned.model_copy(update={"weights": weights or planned.weights, "kv": kv or planned.kv})
    if dtype == "auto":
        dtype = "f32" if platform == "cpu" else "bf16"
    if planned is not None:
        weights = weights or ("int8" if planned.weights == "int8" else None)
        kv = kv or ("int8" if planned.kv == "int8" else None)
    reduce: Float = "f32" if planned is None or dtype == "f32" else planned.reduce
    return Formats.model_validate(
        {"weights": weights or dtype, "activations": dtype, "kv": kv or dtype, "reduce": reduce}
    )
