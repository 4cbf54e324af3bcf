"""What to change, least first, so that a model fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from partita.cost.prediction import Setting
from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.hardware import Chip
from partita.specs.workload import Workload


def smallest_change(setting: Setting, fits: Callable[[Setting], bool]) -> str:
    """A sentence: the first of the changes, tried from the mildest, with which `fits` holds."""
    most = 1  # times the chips
    for change, changed in _changes(setting):
        most = max(most, changed.cluster.chips // setting.cluster.chips)
        try:
            if fits(changed):
                return f"smallest change that fits: {change}"
        except InputError:  # a mesh the larger cluster cannot have
            continue
    more = f", int8 format or up to {most} times the chips" if most > 1 else " or int8 format"
    return f"no smaller batch, shorter context{more} would fit"


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
    """More of the same chips, as much of their memory in use: each time one axis doubled that can be.

    That is the smallest of a torus, and of other fabrics the fastest.
    """
    here = setting.cluster
    if _named(here.name, here.chip) != here:
        return  # a cluster of the user's own has no larger sisters, whatever its name
    torus = all(axis.kind == "torus" for axis in here.fabric)
    shape, mesh = here.shape, list(setting.mesh.sizes)
    for _ in range(6):
        axes = sorted(range(len(shape)), key=shape.__getitem__) if torus else reversed(range(len(shape)))
        names = [_doubled(here.name.partition(":")[0], shape, axis) for axis in axes]
        cluster = next((found for name in names if (found := _named(name, here.chip))), None)
        if cluster is None:
            return
        shape = cluster.shape
        mesh[mesh.index(min(mesh))] *= 2
        yield (
            f"--on {cluster.name}",
            replace(setting, cluster=cluster, mesh=Mesh(setting.mesh.axes, tuple(mesh))),
        )


def _doubled(family: str, shape: tuple[int, ...], axis: int) -> str:
    sizes = (2 * size if place == axis else size for place, size in enumerate(shape))
    return f"{family}:{'x'.join(map(str, sizes))}"


def _named(name: str, chip: Chip) -> Cluster | None:
    """The catalogue's cluster of that name with no more memory than `chip`; None where there is none."""
    try:
        found = parse_cluster(name)
    except InputError:
        return None
    memory = min(chip.hbm_bytes, found.chip.hbm_bytes)
    return found.model_copy(update={"chip": found.chip.model_copy(update={"hbm_bytes": memory})})


def _sized(
    workload: Workload, batch: int | None = None, prefill_batch: int | None = None, prompt: int | None = None
) -> Workload:
    batch = batch or workload.batch
    shorter = workload.prompt - (prompt or workload.prompt)
    return workload.resized(
        prompt=prompt or workload.prompt,
        batch=batch,
        prefill_batch=min(prefill_batch or workload.prefill_batch, batch),
        context=max(workload.context - shorter, 1),
        prefix=min(workload.prefix, (prompt or workload.prompt) - 1),
    )
