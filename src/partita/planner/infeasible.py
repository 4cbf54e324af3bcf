"""Why there is no plan: nothing fits, with the smallest change that would, or what fits misses a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.exact import Exact
from partita.planner.pair import prompts_of
from partita.planner.search import by_storage
from partita.planner.tables import Tables, price
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.hardware import Chip
from partita.specs.units import format_bytes, format_seconds
from partita.specs.workload import Workload


def no_plan(tables: Sequence[Tables]) -> InputError:
    """The error that says why there is no plan: nothing fits, or what fits is too slow."""
    asked = tables[0].case.request
    limited = (asked.max_ttft, asked.max_tpot, asked.rate) != (None, None, None)
    fitting = [table for table in tables if _fits(table)]
    if not fitting or not limited:  # rows may seem to fit that do not as pairs
        closest = nearest([worst for table in tables if (worst := _least_excess(table)) is not None])
        case = tables[-1].case

        def fits(setting: Setting) -> bool:
            workload = setting.workload
            mesh = setting.mesh if case.request.mesh is not None else None
            changed = replace(
                case,
                request=replace(case.request, model=setting.model, mesh=mesh),
                cluster=setting.cluster,
                formats=setting.formats,
                workload=workload,
                batches=(workload.batch,),
                prefill_batches=(workload.prefill_batch,),
            )
            return _fits(price(changed))

        return too_large(closest, fits)
    return too_slow(fitting)


def _fits(tables: Tables) -> bool:
    """Whether some layout of both phases on one storage fits."""
    prefill = {tuple(key) for key in tables.prefill.storage[tables.prefill_fits.any(axis=1)].tolist()}
    decode = {tuple(key) for key in tables.decode.storage[tables.decode_fits.any(axis=1)].tolist()}
    return bool(prefill & decode)


def _least_excess(tables: Tables) -> Prediction | None:
    """The phase that lacks memory in the layout that lacks least; None where no row is a layout at all."""
    best: tuple[float, Prediction] | None = None
    tight = [np.where(np.isfinite(t.seconds), t.held_bytes, np.inf) for t in (tables.decode, tables.prefill)]
    exact, held = Exact(tables), [table.min(axis=1) for table in tight]
    groups = sorted(by_storage(tables), key=lambda rows: max(float(held[i][rows[i]].min()) for i in (0, 1)))
    for rows in groups[:4]:
        chosen = [int(rows[i][held[i][rows[i]].argmin()]) for i in (0, 1)]
        if not all(np.isfinite(held[i][chosen[i]]) for i in (0, 1)):
            continue
        b, pb = (int(tight[i][chosen[i]].argmin()) for i in (0, 1))
        for pair in exact.pairs(chosen[0], b, chosen[1], pb):
            worst = max((pair.decode, pair.prefill), key=lambda phase: phase.memory_bytes["total"])
            if best is None or worst.memory_bytes["total"] < best[0]:
                best = (worst.memory_bytes["total"], worst)
    return None if best is None else best[1]


_NONE = "no layout meets this limit"


def too_large(prediction: Prediction, fits: Callable[[Setting], bool]) -> InputError:
    """The error for a phase that does not fit; `fits(setting)` tells whether a changed setting does."""
    memory, setting = prediction.memory_bytes, prediction.setting
    return InputError(
        "cluster",
        setting.cluster.name,
        f"{setting.model.name} does not fit: {prediction.phase} in {prediction.layout.roles} needs "
        f"{memory_text(memory)} per chip; "
        f"{smallest_change(setting, fits)}",
    )


def alone_fits(prediction: Prediction) -> None:
    """Raises InputError, with the smallest change that would help, where a single phase does not fit."""
    if not prediction.fits:
        roles = prediction.layout.roles
        raise too_large(prediction, lambda setting: predict(setting, prediction.phase, roles).fits)


def too_slow(tables: Sequence[Tables]) -> InputError:
    """The error where layouts fit and none keeps the limits: which limit none keeps, and the best there is.

    Each of `tables` has a layout that fits in both phases.
    """
    case, asked = tables[0].case, tables[0].case.request
    basis = asked.ranked_by
    ttft = min(float(t.prefill_seconds[t.prefill_fits].min()) for t in tables)
    tpot = min(map(_fastest_step, tables))
    if asked.max_ttft is not None and ttft > asked.max_ttft:
        best = f"the fastest prefill's {basis} is {format_seconds(ttft)}"
        return InputError("max_ttft", format_seconds(asked.max_ttft), f"{_NONE}: {best}")
    if asked.max_tpot is not None and tpot > asked.max_tpot:
        beside = " with a chunk of a prompt beside it" if case.interleaved else ""
        best = f"the fastest decode step's {basis}{beside} is {format_seconds(tpot)}"
        return InputError("max_tpot", format_seconds(asked.max_tpot), f"{_NONE}: {best}")
    if asked.rate is not None and (rate := max(map(_highest_rate, tables))) < asked.rate:
        return InputError(
            "rate", f"{asked.rate:.6g}/s", f"no layout sustains it: the highest rate here is {rate:.3g}/s"
        )
    # each is kept by some layout, if not by one pair
    given = {
        "max_tpot": None if asked.max_tpot is None else format_seconds(asked.max_tpot),
        "max_ttft": None if asked.max_ttft is None else format_seconds(asked.max_ttft),
        "rate": None if asked.rate is None else f"{asked.rate:.6g}/s",
    }
    (field, value), *others = ((name, text) for name, text in given.items() if text is not None)
    also = "".join(f" and the {name} of {text}" for name, text in others)
    return InputError(field, value, f"{_NONE}: no pair of layouts meets it{also}")


def _fastest_step(tables: Tables) -> float:
    """Seconds, at least, of a decode step, and of a chunk where that is read in between."""
    step = float(tables.decode.last_seconds[tables.decode_fits].min())
    chunk = float(tables.prefill.last_seconds[tables.prefill_fits].min())
    return step + (chunk if tables.case.interleaved else 0.0)


def _highest_rate(tables: Tables) -> float:
    """Prompts per second that are taken at most, whatever the storage."""
    case, best = tables.case, 0.0
    decode = np.where(tables.decode_fits, tables.decode_seconds, np.inf).min(axis=0)
    prefill = np.where(tables.prefill_fits, tables.prefill_seconds, np.inf).min(axis=0)
    sizes = np.array(case.prefill_batches)
    for batch, seconds in zip(case.batches, decode.tolist(), strict=True):
        prompts = prompts_of(case.workload, batch)
        rounds = -(-prompts // sizes)
        best = max(best, prompts / (seconds + float((rounds * prefill).min())))
    return best


def nearest(predictions: Sequence[Prediction]) -> Prediction:
    """The phase that lacks least memory."""
    return min(predictions, key=lambda prediction: prediction.memory_bytes["total"])


def memory_text(memory: Mapping[str, int]) -> str:
    """What a chip holds, by part and in all, of what it has: `Prediction.memory_bytes` in words."""
    held = {part: size for part, size in memory.items() if part not in ("total", "capacity") and size}
    parts = " + ".join(f"{part} {format_bytes(size)}" for part, size in held.items())
    return f"{parts} = {format_bytes(memory['total'])} of {format_bytes(memory['capacity'])}"


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
    """More of the same chips, with as much of their memory in use: each time one axis is doubled.

    It is the smallest of a torus, and of other fabrics the fastest, that can be doubled.
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
