"""What to change, least first, so that a model fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from partita.cost.prediction import Setting
from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.specs.cluster import parse_cluster
from partita.specs.workload import Workload


def smallest_change(setting: Setting, fits: Callable[[Setting], bool]) -> str:
    """A sentence: the first of the changes, tried from the mildest, with which `fits` holds."""
    for change, changed in _changes(setting):
        try:
            if fits(changed):
                return f"smallest change that fits: {change}"
        except InputError:  # a mesh the larger cluster cannot have
            continue
    return "no smaller batch, shorter context, int8 format or up to 64 times the chips would fit"


def _changes(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """int8 formats, fewer sequences at once, shorter prompts, more chips; each alone, in this order."""
    for kv, weights in (("int8", None), (None, "int8"), ("int8", "int8")):
        update = {k: v for k, v in (("kv", kv), ("weights", weights)) if v}
        if any(getattr(setting.formats, k) != v for k, v in update.items()):
            formats = setting.formats.model_copy(update=update)
            flags = " ".join(f"--{name} {value}" for name, value in update.items())
            yield flags, replace(setting, formats=formats)
    workload = setting.workload
    prefill = workload.prefill_batch
    while prefill > 1:
        prefill //= 2
        yield f"--prefill-batch {prefill}", replace(setting, workload=_sized(workload, prefill_batch=prefill))
    batch = workload.batch
    while batch > 1:
        batch //= 2
        yield f"--batch {batch}", replace(setting, workload=_sized(workload, batch=batch))
    prompt = workload.prompt
    while prompt > 128:
        prompt //= 2
        shorter = _sized(workload, prompt=prompt)
        yield f"--prompt {prompt} --context {shorter.context}", replace(setting, workload=shorter)
    yield from _larger(setting)


def _larger(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """The same kind of chips, each time with the smallest axis doubled."""
    try:
        if parse_cluster(setting.cluster.name) != setting.cluster:
            return  # a cluster of the user's own has no larger sisters, whatever its name
    except InputError:
        return
    family = setting.cluster.name.partition(":")[0]
    sizes, mesh = list(setting.cluster.shape), list(setting.mesh.sizes)
    for _ in range(6):
        sizes[sizes.index(min(sizes))] *= 2
        mesh[mesh.index(min(mesh))] *= 2
        try:
            cluster = parse_cluster(f"{family}:{'x'.join(map(str, sizes))}")
        except InputError:
            return
        yield (
            f"--on {cluster.name}",
            replace(setting, cluster=cluster, mesh=Mesh(setting.mesh.axes, tuple(mesh))),
        )


def _sized(
    workload: Workload, batch: int | None = None, prefill_batch: int | None = None, prompt: int | None = None
) -> Workload:
    batch = batch or workload.batch
    shorter = workload.prompt - (prompt or workload.prompt)
    sizes = {
        "prompt": prompt or workload.prompt,
        "batch": batch,
        "prefill_batch": min(prefill_batch or workload.prefill_batch, batch),
        "context": max(workload.context - shorter, 1),
        "prefix": min(workload.prefix, (prompt or workload.prompt) - 1),
    }
    return Workload(**(workload.model_dump() | sizes))
