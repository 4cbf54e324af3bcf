"""Options of commands that serve a model, and the service that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options as o
from partita.cli.output import progress_bar, show_note
from partita.engine.load import EngineRequest, Placement
from partita.engine.shapes import Capacity
from partita.errors import InputError
from partita.program.options import RunOptions, overlap_of

if TYPE_CHECKING:
    from partita.server.service import Service

Slots = Annotated[int, typer.Option("--slots", help="Sequences that are decoded together.")]
Context = Annotated[
    int | None,
    typer.Option("--context", help="Tokens of a request, prompt and output. Default: 2048 or the model's."),
]
Prefixes = Annotated[
    int | None,
    typer.Option("--prefixes", help="Prompts kept for those that begin alike. Default: as many as slots."),
]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a model is to be served, as the options say it."""

    slots: int
    context: int | None
    prefixes: int | None
    plan: str | None
    mesh: str | None
    devices: int | None
    ffn: str | None
    attention: str | None
    prefill_ffn: str | None
    prefill_attention: str | None
    dtype: str
    weights: str | None
    kv: str | None
    chunk: int | None
    overlap: str
    force: bool

    def __post_init__(self) -> None:
        """Raises InputError naming the option."""
        at_least("slots", self.slots, 1)
        if self.prefixes is not None:
            at_least("prefixes", self.prefixes, 0)

    def service(
        self, model: str, queue: int, seconds: float | None = None, name: str | None = None
    ) -> Service:
        """Loads the model; says on standard error what it is served with. `queue` and `seconds` are as
        `Limits` has them. Raises InputError."""
        run_options = RunOptions(overlap_of(self.overlap))
        run = o.read_placement(
            self.plan,
            self.mesh,
            self.devices,
            self.ffn,
            self.attention,
            self.prefill_ffn,
            self.prefill_attention,
        )
        from partita.checkpoints.open import open_checkpoint
        from partita.engine.engine import Engine
        from partita.server.loop import EngineLoop, Limits
        from partita.server.service import Service

        checkpoint = open_checkpoint(model)
        longest = checkpoint.model.max_context
        if self.context is not None and not 2 <= self.context <= (longest or self.context):
            accepted = f"2 to {longest} tokens are accepted" if longest else "at least 2"
            raise InputError("context", self.context, accepted)
        if (error := checkpoint.tokenizer_error) is not None:
            show_note(f"the tokenizer is not understood, so prompts and answers are token ids ({error})")
        request = EngineRequest(
            dtype=self.dtype,
            weights=self.weights,
            kv=self.kv,
            chunk=self.chunk,
            run_options=run_options,
            devices=self.devices,
            capacity=Capacity(self.slots, self.context or min(2048, longest or 2048)),
            draft="off",
            force=self.force,
            words=o.RUN,
        )
        with progress_bar() as show:
            engine = Engine.on(checkpoint, run, request, lambda done, of: show("placing weights", done, of))
        loop = EngineLoop(engine, Limits(queue, seconds, self.prefixes))
        found = Service(loop, name or checkpoint.model.name, checkpoint.sampling, _figures(run))
        size = f"{loop.capacity.slots} slots of {loop.context} tokens on {run.mesh}"
        show_note(f"{found.name}: {size}; compiling the steps")
        return found


def at_least(field: str, value: int, least: int) -> None:
    """Raises InputError naming the option."""
    if value < least:
        raise InputError(field, value, f"a whole number of at least {least} is accepted")


def _figures(run: Placement) -> dict[str, Any] | None:
    """What a saved plan predicts of each phase, in seconds: bound, and estimate where there is one."""
    if run.plan is None:
        return None
    prefill, decode = run.plan.predictions()
    return {"plan": {"prefill": prefill.as_json(), "decode": decode.as_json()}}
