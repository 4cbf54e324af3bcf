"""Partita's engine, served to `engine.py`: SmolLM2's steps in one format on so many devices.

A step is what `partita.measure.launches` compiles, on weights that mean nothing: a time does not depend on
them. Its tokens are fetched to the host, as generation does.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
from peers.serve import Case, Step, serve

from partita.engine.devices import devices_for
from partita.engine.engine import EngineOptions
from partita.measure.launches import Steps
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_layout
from partita.specs import Formats, catalogue_model
from partita.specs.formats import BYTES


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True)
    options.add_argument("--devices", type=int, required=True)
    options.add_argument("--weights", required=True)
    options.add_argument("--layouts", required=True, help="of prefill and decode, a comma between them")
    asked = options.parse_args()
    model, mesh = catalogue_model(asked.model), Mesh("x", (asked.devices,))
    prefill, decode = (parse_layout(text, mesh.axes) for text in asked.layouts.split(","))
    activations = "bf16" if asked.weights == "bf16" else "f32"
    formats = Formats(weights=asked.weights, activations=activations, kv=activations)
    devices = devices_for(asked.devices, asked.devices)
    steps = Steps(model, mesh, plan_storage(model, mesh, decode, prefill), formats, EngineOptions(devices))

    def ready(case: Case) -> Step:
        if case.phase == "prefill":
            step = steps.ready(prefill, "prefill", case.batch, case.tokens)
        else:
            step = steps.ready(decode, "decode", case.batch, case.tokens + 1)  # the new token is cached too
        return lambda: np.asarray(step())

    serve(
        ready,
        {
            "version": f"jax {jax.__version__}",
            "weight_bytes": sum(parameter.nbytes for parameter in steps.parameters.values()),
            "cache_bytes": BYTES[activations],
        },
    )


if __name__ == "__main__":
    main()
