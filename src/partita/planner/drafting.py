"""Speculative decoding of a plan: tokens a step, TPOT and tokens/s for drafts of so many tokens, priced.

A step drafts k tokens and verifies them: decode of 1 + k tokens of each sequence in the plan's own layout,
every one of them unembedded and drawn after. It writes 1 + a + ... + a^k tokens, a being the chance of each
to be accepted. A head drafts one token after the other, each by one layer of the model, in time times the
head's parameters over those of a layer, with the model's own embedding and unembedding; a head's parameters
are those of a layer and of the matrix that joins its inputs, unless given. What n-grams cost the host is left
out. The engine runs n-gram drafts only: heads are planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.cost.phase import BoundClock, Clock
from partita.cost.phase_estimate import EstimateClock
from partita.cost.schedule import Chunk, StageLayers
from partita.cost.step import StepShape, price_step
from partita.planner.pair import Basis, Pair
from partita.specs.drafts import DraftRequest, published_drafts, tokens_per_step

_DRAFTED = range(1, 8)
_INPUTS = {"mtp": 2, "eagle3": 3}
"""Vectors of d_model that a head joins: the residual and an embedding, or the residuals of three layers."""


@dataclass(frozen=True)
class DraftedStep:
    """A step that drafts and verifies, beside one that writes a token."""

    drafted: int
    acceptance: float
    source: str
    """Where the acceptance is from: "given", or who published it."""
    target: str
    """Whose acceptance it is."""
    step_seconds: float
    """Of a step, its drafting included."""
    draft_seconds: float
    plain_seconds: float
    """Of a step without drafts."""
    batch: int

    @property
    def tokens(self) -> float:
        """Tokens that a step writes for each sequence."""
        return tokens_per_step(self.acceptance, self.drafted)

    @property
    def tpot_seconds(self) -> float:
        return self.step_seconds / self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences, while they are decoded."""
        return self.batch / self.tpot_seconds

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.tpot_seconds

    def as_json(self) -> dict[str, Any]:
        return {
            "drafted": self.drafted,
            "acceptance": self.acceptance,
            "target": self.target,
            "source": self.source,
            "tokens_per_step": self.tokens,
            "step_seconds": self.step_seconds,
            "draft_seconds": self.draft_seconds,
            "tpot_seconds": self.tpot_seconds,
            "tokens_per_second": self.tokens_per_second,
            "speedup": self.speedup,
        }


def drafted_steps(pair: Pair, asked: DraftRequest) -> tuple[DraftedStep, ...]:
    """Steps of the pair's decode with drafts, by its basis; without an acceptance, those published for the
    method, each with as many tokens drafted as were there unless `asked` says how many."""
    if asked.acceptance is not None:
        cases = [("", "given", asked.acceptance, k) for k in _numbers(asked)]
    else:
        cases = [
            (one.target, one.source, one.acceptance, asked.drafted or one.drafted)
            for one in published_drafts()
            if one.method == asked.method
        ]
    return tuple(_step(pair, asked, *case) for case in cases)


def _numbers(asked: DraftRequest) -> range:
    return _DRAFTED if asked.drafted is None else range(asked.drafted, asked.drafted + 1)


def _step(
    pair: Pair, asked: DraftRequest, target: str, source: str, acceptance: float, drafted: int
) -> DraftedStep:
    run, clock = pair.decode.run, clock_of(pair, pair.basis)
    head = 0.0 if asked.method == "ngram" else drafted * head_seconds(pair, asked, clock)
    verified = run.step_seconds(Chunk(1 + drafted, run.tokens), clock)
    return DraftedStep(
        drafted=drafted,
        acceptance=acceptance,
        source=source,
        target=target,
        step_seconds=verified + head,
        draft_seconds=head,
        plain_seconds=run.step_seconds(run.longest, clock),
        batch=pair.decode.batch,
    )


def clock_of(pair: Pair, basis: Basis) -> Clock:
    """The clock of a basis; an estimate needs the profile that the pair was priced with."""
    setting, profile = pair.decode.setting, pair.decode.setting.cluster.profile
    return BoundClock(setting) if basis == "bound" or profile is None else EstimateClock(setting, profile)


def head_seconds(pair: Pair, asked: DraftRequest, clock: Clock) -> float:
    """Seconds in which a head drafts one token for every sequence, on the chips of one stage."""
    run, setting = pair.decode.run, pair.decode.setting
    model = setting.model
    count, batch = run.microbatches

    def seconds(part: StageLayers) -> float:
        shape = StepShape(batch, 1, run.tokens)
        layout = run.layout(run.longest)
        step = price_step(model, layout, setting.mesh.size, setting.formats, shape, part=part)
        return float(clock.stage_seconds(step.ledger))

    layer = StageLayers(*((1, 0) if model.global_layers else (0, 1)), embeds=False, unembeds=False)
    own = (
        model.model_copy(update={"layers": 1}).parameters - model.model_copy(update={"layers": 0}).parameters
    )
    parameters = asked.parameters or own + _INPUTS[asked.method] * model.d_model**2
    return count * (seconds(StageLayers(0, 0)) + parameters / own * seconds(layer))
