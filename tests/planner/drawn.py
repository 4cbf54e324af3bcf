"""Small models, clusters and cases drawn at random, the same for a seed."""

import random
from dataclasses import replace
from typing import Any

from partita.planner import Case, Objective, PlanRequest
from partita.specs import Cluster, Formats, Model, PhysicalAxis, Workload, catalogue_chip
from partita.specs.hardware import Kind
from partita.specs.model import Latent

TORUS = [(1,), (2,), (7,), (6,), (2, 2), (2, 4), (3, 4), (2, 2, 3)]
NODES = [(1, 2), (2, 1), (2, 2), (2, 4), (3, 4), (4, 3)]


def a_model(draw: random.Random, **more) -> Model:
    """A model of any family: multi-query, grouped or multi-head, windows, latent attention, biases."""
    kv, group = draw.choice([(1, 8), (2, 4), (3, 3), (4, 1), (8, 1), (1, 5), (6, 2)])
    sizes = {"heads": kv * group, "kv_heads": kv, "head_dim": draw.choice([16, 64])}
    if draw.random() < 0.3:
        more |= {"window": draw.choice([4, 40, 1000]), "global_period": draw.choice([None, 2])}
    if draw.random() < 0.25:
        query_rank = draw.choice([None, 24])
        more["latent"] = Latent(kv_rank=50, query_rank=query_rank, nope_dim=16, rope_dim=8, value_dim=16)
        sizes = {"heads": kv * group, "kv_heads": kv * group, "head_dim": 24}
    return Model(
        name="drawn",
        layers=draw.randint(1, 4),
        d_model=draw.choice([48, 128, 250]),
        d_ff=draw.choice([96, 512, 1000]),
        vocabulary=draw.choice([100, 1000]),
        block=draw.choice(["serial", "parallel"]),
        feed_forward=draw.choice(["swiglu", "gelu"]),
        qkv_bias=draw.random() < 0.3,
        **sizes,
        **more,
    )


def a_cluster(draw: random.Random) -> Cluster:
    """A torus, or nodes with a switch in each; their chips keep no memory for a runtime."""
    torus = draw.random() < 0.5
    shape = draw.choice(TORUS if torus else NODES)
    kinds: list[Kind] = ["torus"] * len(shape) if torus else ["network", "switch"]
    bandwidth = draw.choice([1e9, 1e10])
    fabric = tuple(
        PhysicalAxis(
            kind=kind,
            size=size,
            links=2 if torus else 1,
            link_bandwidth=bandwidth if torus else draw.choice([1e9, 1e10]),
            in_network_reduction=kind == "switch" and draw.random() < 0.5,
        )
        for kind, size in zip(kinds, shape, strict=True)
    )
    chip = catalogue_chip("tpu-v4").model_copy(update={"runtime_bytes": 0})
    return Cluster(name="drawn", chip=chip, fabric=fabric)


def a_case(seed: int, *, chunked: bool = False, staged: bool = False, objective: Objective = "cost") -> Case:
    """Decode steps come after one token of output, so that a step's mean context is the whole cache.

    Where `chunked`, the prompts have a cached prefix and are read in equal chunks; where `staged`, there is a
    pipeline if nodes can be divided.
    """
    draw = random.Random(seed)
    model, cluster = a_model(draw), a_cluster(draw)
    batches = tuple(sorted(draw.sample([1, 2, 3, 4, 8, 12, 64], 3)))
    workload = {"prompt": draw.choice([1, 5, 16, 100, 1000])}
    if chunked:
        chunk, chunks = draw.choice([1, 4, 64]), draw.choice([1, 2, 5])
        prefix = draw.choice([0, 1, 30])
        workload = {"prompt": prefix + chunk * chunks, "prefix": prefix, "chunk": chunk}
    fits = [n for n in range(1, 5) if cluster.shape[0] % n == 0 and n <= model.layers]
    formats = Formats(
        weights=draw.choice(["bf16", "int8"]),
        kv=draw.choice(["bf16", "int8"]),
        reduce=draw.choice(["f32", "bf16"]),
    )
    request = PlanRequest(
        model=model,
        clusters=(cluster,),
        formats=(formats,),
        workload=Workload(output=1, batch=1, **workload),
        objective=objective,
        stages=fits[-1] if staged else 1,
    )
    return one_case(request, batches)


def one_case(
    request: PlanRequest, batches: tuple[int, ...], prefill_batches: tuple[int, ...] | None = None
) -> Case:
    """The case of a request that leaves only these batches to choose from; prefill's are decode's unless
    given."""
    (found,) = request.cases()
    return replace(found, batches=batches, prefill_batches=prefill_batches or batches)


def changed(case: Case, **changes: Any) -> Case:
    """The case of a request with other limits, or on another cluster."""
    request = replace(case.request, **changes)
    (cluster,) = request.clusters
    return replace(case, request=request, cluster=cluster)
