"""`partita.plan`: the planner as one Python call. Never imports JAX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import NoneType

from partita.errors import InputError
from partita.planner.chips import parse_clusters
from partita.planner.pair import Basis, Objective, parse_basis, parse_objective
from partita.planner.plan import Plan, best_plan
from partita.planner.request import PlanRequest
from partita.sharding.mesh import Mesh, parse_mesh
from partita.specs.arguments import of_type, whole_number
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.hardware import read_utilization
from partita.specs.model import Model
from partita.specs.resolve import resolve_model
from partita.specs.units import parse_bytes, parse_duration, parse_rate
from partita.specs.workload import Workload


def plan(
    model: str | Model,
    on: str | Cluster,
    *,
    prompt: int = 2048,
    output: int = 64,
    prefix: int = 0,
    batch: int | str = "auto",
    prefill_batch: int | str | None = None,
    samples: int = 1,
    context: int | None = None,
    chunk: int | str | None = None,
    objective: Objective = "latency",
    mesh: str | Mesh | None = None,
    stages: int | None = None,
    formats: Formats | Sequence[Formats] | None = None,
    max_ttft: str | None = None,
    max_tpot: str | None = None,
    max_chips: int | None = None,
    memory: str | None = None,
    memory_utilization: float | None = None,
    rate: str | None = None,
    by: Basis | None = None,
    top: int = 5,
) -> Plan:
    """The best layouts of both phases, as `partita plan` chooses them; arguments as its options.

    `on` may be `h100:auto`, and `formats` several, to choose from. `by`: rank and limit by the "bound" or the
    "estimate", which is usual where the cluster's profile compares layouts. Raises InputError for wrong
    input, and where nothing fits or keeps the limits.
    """
    of_type("model", model, (str, Model), "the name of a model, or a Model,")
    of_type("on", on, (str, Cluster), "a text such as tpu-v4:4x4x4, or a Cluster,")
    of_type("mesh", mesh, (str, Mesh, NoneType), "a text such as x=4,y=4, or a Mesh,")
    for field, text in {"max_ttft": max_ttft, "max_tpot": max_tpot, "memory": memory, "rate": rate}.items():
        of_type(field, text, (str, NoneType), "a text of a number and its unit, such as 30ms, 80GB or 3/s,")
    if memory is not None and memory_utilization is not None:
        raise InputError("memory_utilization", memory_utilization, "give it or memory, not both")
    if max_chips is not None:
        max_chips = whole_number("max_chips", max_chips)
    choices = [formats] if isinstance(formats, Formats) else formats or [Formats()]
    for each in of_type("formats", choices, (list, tuple), "Formats, or a list of them,"):
        of_type("formats", each, Formats, "Formats, or a list of them,")
    request = PlanRequest(
        model=read_model(model) if isinstance(model, str) else model,
        clusters=tuple(parse_clusters(on, max_chips)) if isinstance(on, str) else (on,),
        formats=tuple(choices),
        workload=Workload(
            prompt=prompt,
            output=output,
            prefix=prefix,
            # Workload refuses what is no number
            batch=1 if batch == "auto" else batch,  # type: ignore[arg-type]
            prefill_batch=None if prefill_batch == "auto" else prefill_batch,  # type: ignore[arg-type]
            samples=samples,
            context=context,
            chunk=None if chunk == "auto" else chunk,  # type: ignore[arg-type]
        ),
        objective=parse_objective(objective),
        auto_batch=batch == "auto",
        auto_prefill_batch=prefill_batch in (None, "auto"),
        auto_chunk=chunk in (None, "auto"),
        between=chunk is not None,
        mesh=parse_mesh(mesh) if isinstance(mesh, str) else mesh,
        stages=None if stages is None else whole_number("stages", stages),
        max_ttft=None if max_ttft is None else parse_duration(max_ttft, "max_ttft"),
        max_tpot=None if max_tpot is None else parse_duration(max_tpot, "max_tpot"),
        rate=None if rate is None else parse_rate(rate, "rate"),
        memory_bytes=None if memory is None else parse_bytes(memory, "memory"),
        memory_utilization=None
        if memory_utilization is None
        else read_utilization(memory_utilization, "memory_utilization"),
        basis=None if by is None else parse_basis(by),
        top=whole_number("top", top),
    )
    return best_plan(request)


def read_model(text: str) -> Model:
    """The model a text names, for planning: no weights are read. Errors as those of `resolve_model`."""
    readers = {".gguf": _model_from_gguf, "partita.json": _model_from_partita_json}
    if "/" in text and not os.path.exists(os.path.expanduser(text.replace("\0", ""))):
        from partita.checkpoints.open import fetch, is_repo_id

        if is_repo_id(text):
            model = resolve_model(str(fetch(text, "config")), readers)
            return model.model_copy(update={"name": text})
    return resolve_model(text, readers)


def _model_from_gguf(path: Path) -> Model:
    # imported here: the gguf library would slow every plan of another model
    from partita.checkpoints.gguf import open_gguf

    return open_gguf(path).model


def _model_from_partita_json(path: Path) -> Model:
    from partita.checkpoints.folder import model_from_partita_json

    return model_from_partita_json(path)
