"""What would fit: the knobs of a setting, each turned as little as it takes, what loses nothing first.

Fewer tokens of a prompt at a time, or fewer prompts, give the same answers. A smaller batch, shorter prompts
and formats of fewer bits do not, and more chips cost more. Sizes are found by bisection, and what is offered
has been planned before it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.nearest import nearest_pairs
from partita.planner.pair import Pair, prompts_of
from partita.planner.request import CHUNKS, SMALL_CHUNKS, Case
from partita.planner.search import search
from partita.planner.tables import COARSE_CELLS, price
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.formats import Formats
from partita.specs.hardware import MEMORY_UTILIZATION, Chip
from partita.specs.workload import Workload


@dataclass(frozen=True)
class Change:
    """flags: as they are typed. free: sizes that the flags leave to the planner."""

    flags: str
    setting: Setting
    free: frozenset[str] = frozenset()

    @property
    def auto(self) -> str:
        """The flags of the sizes left to the planner."""
        return "".join(f" --{name.replace('_', '-')} auto" for name in sorted(self.free))


class Candidate(Protocol):
    """A phase in one layout, or a pair of them."""

    @property
    def fits(self) -> bool: ...


C = TypeVar("C", bound=Candidate)


class Fit(Protocol[C]):
    """Tells whether a changed setting fits, and which of its sizes are the user's own."""

    @property
    def plans(self) -> bool:
        """Whether it is a plan of both phases."""
        ...

    @property
    def given(self) -> frozenset[str]:
        """Of batch, prefill_batch, chunk, prompt, context and mesh."""
        ...

    def near(self, change: Change) -> Sequence[C]:
        """What comes closest to fitting, at first sight."""
        ...

    def sized(self, candidate: C, change: Change) -> C:
        """A candidate in another setting."""
        ...

    def does(self, change: Change) -> bool:
        """Whether it fits."""
        ...


@dataclass(frozen=True)
class PhaseFit:
    """A phase alone in its layout fits."""

    prediction: Prediction
    plans: bool = False

    @property
    def given(self) -> frozenset[str]:
        if self.prediction.phase == "decode":
            return frozenset({"batch", "context", "mesh"})
        return frozenset({"batch", "chunk", "prompt", "mesh"})  # one option for both batches

    def near(self, change: Change) -> Sequence[Prediction]:
        return [predict(change.setting, self.prediction.phase, self.prediction.layout.roles)]

    def sized(self, candidate: Prediction, change: Change) -> Prediction:
        return candidate.priced_in(change.setting)

    def does(self, change: Change) -> bool:
        return self.near(change)[0].fits


@dataclass(frozen=True)
class PlanFit:
    """Some pair of layouts fits, limits apart; `case` is of the request that had no plan."""

    case: Case
    plans: bool = True

    @property
    def given(self) -> frozenset[str]:
        request = self.case.request
        found = {
            "batch": not request.auto_batch,
            "prefill_batch": not request.leaves_prefill_batch,
            "chunk": not request.auto_chunk,
            "mesh": request.mesh is not None,
            "prompt": request.traffic is None,
            "context": request.traffic is None,
        }
        return frozenset(name for name, given in found.items() if given)

    def near(self, change: Change) -> Sequence[Pair]:
        """Prompts are read as few tokens at a time as may be, in fewer layouts than `does` looks at."""
        return nearest_pairs(price(self._case(change, quick=True), COARSE_CELLS))

    def sized(self, candidate: Pair, change: Change) -> Pair:
        """What is left to the planner stays as the pair has it."""
        own, workload = candidate.decode.setting.workload, change.setting.workload
        given = self.given - change.free
        sizes: dict[str, int | None] = {}
        if "chunk" not in given:
            sizes["chunk"] = own.chunk
        if "prefill_batch" not in given:
            sizes["prefill_batch"] = min(own.prefill_batch, prompts_of(workload, workload.batch))
        mesh, workload = candidate.decode.setting.mesh, workload.resized(**sizes)
        return candidate.priced_in(replace(change.setting, mesh=mesh, workload=workload))

    def does(self, change: Change) -> bool:
        return bool(search(self._case(change, quick=False), 1).pairs)

    def _case(self, change: Change, quick: bool) -> Case:
        case, setting, workload = self.case, change.setting, change.setting.workload
        prompts = prompts_of(workload, workload.batch)
        prefill, chunks = (workload.prefill_batch,), (workload.chunk,)
        if "prefill_batch" not in self.given - change.free:
            chips = case.topology.chips
            few = {1, min(prompts, chips)}
            prefill = tuple(sorted(few | {b for b in case.prefill_batches if b <= prompts and not quick}))
        if "chunk" not in self.given - change.free:
            tried = (1, 16, 128) if quick else (*SMALL_CHUNKS, *CHUNKS)
            chunks = (None, *replace(case.request, workload=workload).shorter(tried))
        request = replace(
            case.request,
            model=setting.model,
            mesh=setting.mesh if case.request.mesh is not None else None,
            workload=workload,
            memory_bytes=None,
            memory_utilization=setting.memory_utilization,
            max_ttft=None,
            max_tpot=None,
            rate=None,
        )
        return replace(
            case,
            request=request,
            cluster=setting.cluster,
            formats=setting.formats,
            batches=(workload.batch,),
            prefill_batches=prefill,
            chunks=chunks,
        )


def smallest_change(setting: Setting, fit: Fit[Any]) -> str:
    """A sentence: a change that loses nothing, if one is enough, else every one that is enough alone."""
    for change in _lossless(setting, fit):
        if fit.does(change):
            return f"smallest change that fits: {change.flags}"
    found = []
    for change in _lossy(setting, fit):
        alone = Change(change.flags.removesuffix(change.auto), change.setting)
        best = alone if change.free and _fits(fit, alone) else change
        if fit.does(best):
            found.append(best.flags)
    if found:
        return f"smallest change that fits: {'; or '.join(found)}"
    chips = max((each.cluster.chips // setting.cluster.chips for _, each in _larger(setting)), default=1)
    more = f", int8 format or up to {chips} times the chips" if chips > 1 else " or int8 format"
    return f"no smaller batch, shorter context{more} would fit"


def _lossless(setting: Setting, fit: Fit[Any]) -> Iterator[Change]:
    """Fewer tokens of a prompt at a time, fewer prompts at a time, or both."""
    workload, given = setting.workload, fit.given
    tokens, prompts = min(workload.chunk or workload.new_tokens, workload.new_tokens), workload.prefill_batch

    def read(chunk: int | None, batch: int) -> Change:
        flags = [f"--prefill-batch {batch}"] if batch < prompts else []
        flags += [f"--chunk {chunk}"] if chunk is not None and chunk < tokens else []
        sized = workload.resized(chunk=chunk or workload.chunk, prefill_batch=batch)
        return Change(" ".join(flags), replace(setting, workload=sized))

    fewer = "prefill_batch" in given and prompts > 1
    if "chunk" in given and (chunk := _most(tokens - 1, lambda chunk: read(chunk, prompts), fit)):
        yield read(chunk, prompts)
    if fewer and (batch := _most(prompts - 1, lambda batch: read(None, batch), fit)):
        yield read(None, batch)
    if fewer and "chunk" in given and (chunk := _most(tokens - 1, lambda chunk: read(chunk, 1), fit)):
        yield read(chunk, 1)


def _lossy(setting: Setting, fit: Fit[Any]) -> Iterator[Change]:
    """A smaller batch, formats of fewer bits, a shorter context, shorter prompts, more chips, more of their
    memory; each as much as it takes where the sizes that lose nothing are left to the planner."""
    given, workload = fit.given, setting.workload
    freed = frozenset({"prefill_batch", "chunk"} & given) if fit.plans else frozenset()

    def change(flags: str, **changed: Any) -> Change:
        found = Change(flags, replace(setting, **changed), freed)
        return replace(found, flags=f"{flags}{found.auto}")

    def with_batch(batch: int) -> Change:
        return change(f"--batch {batch}", workload=_sized(workload, batch=batch))

    def with_context(tokens: int) -> Change:
        return change(f"--context {tokens}", workload=workload.resized(context=tokens))

    def with_prompt(prompt: int) -> Change:
        shorter = _sized(workload, prompt=prompt)
        own = fit.plans and workload.context != workload.prompt + workload.output
        context = f" --context {shorter.context}" if own else ""
        return change(f"--prompt {prompt}{context}", workload=shorter)

    if "batch" in given and (batch := _most(workload.batch - 1, with_batch, fit)):
        yield with_batch(batch)
    yield from _first((change(flags, formats=formats) for flags, formats in _cheaper(setting)), fit)
    least = workload.prompt + workload.output if fit.plans else 1
    if "context" in given and (n := _most(workload.context - 1, with_context, fit, least)):
        yield with_context(n)
    if "prompt" in given and (n := _most(workload.prompt - 1, with_prompt, fit, workload.prefix + 1)):
        yield with_prompt(n)
    for_mesh = "mesh" in given
    larger = (
        change(f"{flags} --mesh {s.mesh}" if for_mesh else flags, cluster=s.cluster, mesh=s.mesh)
        for flags, s in _larger(setting)
    )
    yield from _first(larger, fit)
    shares = (change(f"--memory-utilization {n:g}", memory_utilization=n) for n in _shares(setting))
    yield from _first(shares, fit)


def _most(most: int, changed: Callable[[int], Change], fit: Fit[Any], least: int = 1) -> int:
    """The largest size from `least` to `most` that fits, by bisection; 0 if none does.

    Bisected are those layouts that come closest at one size; then others may at the next.
    """
    if most < least or not _fits(fit, changed(least)):
        return 0
    size = least
    for _ in range(_TURNS):
        near = [each for each in fit.near(changed(size)) if each.fits]
        high = most + 1
        while high - size > 1 and near:
            middle = (size + high) // 2
            change = changed(middle)
            if any(fit.sized(each, change).fits for each in near):
                size = middle
            else:
                high = middle
        if size == most or not _fits(fit, changed(size + 1)):
            return size
        size += 1
    return size


_TURNS = 6
"""How often other layouts are looked for at the largest size of some."""


def _first(changes: Iterable[Change], fit: Fit[Any]) -> Iterator[Change]:
    """The first that fits."""
    fitting = (change for change in changes if _fits(fit, change))
    yield from islice(fitting, 1)


def _fits(fit: Fit, change: Change) -> bool:
    try:
        return any(each.fits for each in fit.near(change))
    except InputError:  # a mesh the larger cluster cannot have
        return False


def _cheaper(setting: Setting) -> Iterator[tuple[str, Formats]]:
    """Formats of fewer bits, from the mildest change."""
    for names in (("kv",), ("weights",), ("kv", "weights")):
        if any(getattr(setting.formats, name) != "int8" for name in names):
            flags = " ".join(f"--{name} int8" for name in names)
            yield flags, setting.formats.model_copy(update=dict.fromkeys(names, "int8"))


def _shares(setting: Setting) -> Iterator[float]:
    """More of a chip's memory, where what servers leave free by habit is what lacks."""
    if setting.memory_utilization == MEMORY_UTILIZATION:
        yield from (percent / 100 for percent in range(91, 96))


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


def _sized(workload: Workload, batch: int | None = None, prompt: int | None = None) -> Workload:
    """Another batch or prompt; the context is shorter by as much as the prompt."""
    batch = batch or workload.batch
    shorter = workload.prompt - (prompt or workload.prompt)
    return workload.resized(
        prompt=prompt or workload.prompt,
        batch=batch,
        prefill_batch=min(workload.prefill_batch, prompts_of(workload, batch)),
        context=max(workload.context - shorter, 1),
    )
