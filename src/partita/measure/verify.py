"""Verifies the prediction: what the cost interpreter says is moved against what the program moves.

Checked is what generation launches: a step to its logits, and the draw of tokens from them. Needs shapes
only: no weights are loaded and nothing is run. In float32 the compiled program is counted too
(on CPU, XLA widens bfloat16 collectives to float32, so there the trace alone has the true bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.cost.ledger import Ledger
from partita.cost.step import StepOptions, StepShape, price_cache_reshard, price_first_draw, price_step
from partita.engine.compile_cache import compiled_anew
from partita.engine.engine import EngineOptions
from partita.engine.steps import Programs
from partita.measure.counts import Counts, count_hlo, count_jaxpr, predicted
from partita.measure.launches import Launch, decode_launches, ints, prefill_launches
from partita.sharding.layout import Layout, plan_storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import Roles
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.workload import Workload


@dataclass(frozen=True)
class Check:
    """One step under one layout: predicted, counted in the trace and, in float32, in the compiled HLO."""

    layout: str
    phase: str
    predicted: Counts
    counted: Counts
    compiled: Counts | None
    memory: tuple[int, int] | None = None
    """Bytes a device holds for the step, as predicted and, where it was compiled, as XLA says."""

    @property
    def exact(self) -> bool:
        """Bytes and messages by kind and axes, and FLOPs of dots, all equal."""
        traced = self.counted.same_collectives(self.predicted) and self.counted.flops == self.predicted.flops
        if self.compiled is None:
            return traced
        # a permute in HLO is pairs of chips, which do not name its axes
        return traced and _permutes_unnamed(self.predicted).same_collectives(self.compiled)


def verify(
    model: Model,
    mesh: Mesh,
    pairs: Sequence[tuple[Roles, Roles]],
    formats: Formats,
    workload: Workload,
    options: EngineOptions | None = None,
    *,
    compiled: bool = True,
) -> Iterator[Check]:
    """Checks prefill, the resharding of the cache, and decode of every (prefill, decode) pair of roles.

    Prefill takes a batch of prompts of the workload, decode a cache of its context for each.
    """
    options = options or EngineOptions()
    batch, prompt, context = workload.batch, workload.prompt, workload.context
    for prefill_roles, decode_roles in pairs:
        stored = plan_storage(model, mesh, decode_roles, prefill_roles)
        programs = Programs(model, mesh, stored, formats, options.devices, options.run_options)
        prefill = resolve(prefill_roles, stored, mesh, batch, prompt)
        decode = resolve(decode_roles, stored, mesh, batch, 1)
        rows = ceil_to(batch, product(mesh.size, union(prefill.batch_axes, decode.batch_axes)))
        width = ceil_to(prompt, product(mesh.size, union(prefill.query_axes, stored.s_axes)))
        held, capacity = (programs.divisible(n) for n in (context, max(width, context)))
        yield check_prefill(programs, prefill, decode, rows, width, compiled)
        yield check_cache_reshard(programs, prefill, decode, rows, width, capacity, compiled)
        yield check_decode(programs, decode, rows, held, compiled)


def check_prefill(
    programs: Programs, layout: Layout, decode: Layout, batch: int, prompt: int, compiled: bool
) -> Check:
    """Checks one prefill step and the draw of the first tokens into slots of `decode`'s layout; `batch` and
    `prompt` are padded to what the layouts split."""
    step = price_step(
        programs.model,
        layout,
        programs.mesh.size,
        programs.formats,
        StepShape(batch, prompt),
        StepOptions(sampler=None, run_options=programs.run_options),
    )
    draw = price_first_draw(programs.model, layout, decode, programs.mesh.size, programs.formats, batch=batch)
    launches = prefill_launches(programs, layout, decode, batch, prompt)
    held = max(step.memory_bytes, step.weight_bytes + step.kv_bytes + draw.held_bytes)
    entries = [*step.ledger.entries, *draw.entries]
    return checked(programs, "prefill", str(layout.roles), launches, Ledger(entries), compiled, int(held))


def check_decode(programs: Programs, layout: Layout, batch: int, context: int, compiled: bool) -> Check:
    """Checks one decode step over a cache of `context` tokens, and the draw of the next tokens."""
    step = price_step(
        programs.model,
        layout,
        programs.mesh.size,
        programs.formats,
        StepShape(batch, 1, context),
        StepOptions(run_options=programs.run_options),
    )
    launches, held = decode_launches(programs, layout, batch, context), int(step.memory_bytes)
    return checked(programs, "decode", str(layout.roles), launches, step.ledger, compiled, held)


def check_cache_reshard(
    programs: Programs, source: Layout, target: Layout, batch: int, prompt: int, context: int, compiled: bool
) -> Check:
    """Checks the resharding of the cache for decode's layout, with room for `context` tokens."""
    ledger = price_cache_reshard(
        programs.model, source, target, programs.mesh.size, programs.formats, StepShape(batch, prompt)
    )
    run = programs.reshard_cache(source, target, context)
    name = f"{source.roles} -> {target.roles}"
    launches = (Launch(run, (programs.cache(source, batch, prompt), ints(batch))),)
    return checked(programs, "switch", name, launches, ledger, compiled)


def checked(
    programs: Programs,
    phase: str,
    layout: str,
    launches: Sequence[Launch],
    ledger: Ledger,
    compiled: bool,
    held: int | None = None,
) -> Check:
    """All that is launched for a step against its ledger; `held` is what a device is predicted to hold."""
    sizes = programs.mesh.size
    in_hlo = compiled and programs.formats == Formats(weights="f32", activations="f32", kv="f32")
    counted, found, taken = Counts(), Counts() if in_hlo else None, 0
    for launch in launches:
        traced = launch.run.trace(*launch.arguments)
        counted.include(count_jaxpr(traced.jaxpr, sizes))
        if found is not None:
            with compiled_anew():
                program = traced.lower().compile()
            found.include(count_hlo(program.as_text(), programs.mesh.axes, programs.mesh.sizes))
            taken = max(taken, launch.held_bytes(program))
    memory = None if found is None or held is None else (held, taken)
    return Check(layout, phase, predicted(ledger, sizes), counted, found, memory)


def _permutes_unnamed(counts: Counts) -> Counts:
    found = Counts(flops=counts.flops)
    for (kind, axes), sent in counts.sent_bytes.items():
        key = (kind, "" if kind == "collective-permute" else axes)
        found.sent_bytes[key] += sent
        found.messages[key] += counts.messages[kind, axes]
    return found
