"""The efficiency profile of a chip and its software: few constants, fitted to measurements.

Each constant has a physical meaning and a plausible range (`TERMS`), and in a profile a value with its 90%
confidence interval, or the reason why it is fixed there and not fitted. With them comes what the profile was
fitted to (`Region`) and how far held-out measurements lay from it (`residuals`). `cost.estimate` makes times
of constants, and `measure.fit` fits them.

A constant of links may be given for one kind of fabric, and within it for one kind of collective; the most
specific one counts: `switch/all-reduce/share`, else `switch/share`, else `share`'s neutral value.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from partita.specs.formats import Float

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = get_args(Phase)
LEVELS = ("torus", "switch", "network")
COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""The intervals of which a profile may say how often they held (`Profile.coverage`)."""
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Range = tuple[Finite, Finite]
Kinds = Annotated[tuple[str, ...], Field(min_length=1)]


class Term(NamedTuple):
    """What a constant means: its unit, the range that is plausible, and the value that changes nothing."""

    unit: str
    meaning: str
    low: float
    high: float
    neutral: float


TERMS: dict[str, Term] = {
    "matmul_share": Term("share of peak", "FLOP/s that a large matmul reaches", 0.05, 1.0, 1.0),
    "int8_matmul_share": Term(
        "share of the 8-bit peak", "FLOP/s that a large matmul of two 8-bit operands reaches", 0.05, 1.0, 1.0
    ),
    "half_rows": Term(
        "rows", "rows of a matmul that reaches half of what a large one does", 0.0, 2048.0, 0.0
    ),
    "memory_share": Term(
        "share of peak", "bytes/s read from memory that an operation reaches", 0.05, 1.0, 1.0
    ),
    "activation_share": Term(
        "share", "part of the activations' bytes that goes through memory; 0 keeps all on chip", 0.0, 8.0, 0.0
    ),
    "hidden_share": Term("share", "part of the transfers that goes on behind operations", 0.0, 1.0, 0.0),
    "looped_share": Term(
        "share",
        "part of what looped collectives can send behind their own matmuls that they do",
        0.0,
        1.0,
        1.0,
    ),
    "layer_seconds": Term("seconds", "time of a layer that no count explains", 0.0, 0.01, 0.0),
    "sequence_seconds": Term(
        "seconds", "time of a layer for each sequence that a chip attends to", 0.0, 1e-4, 0.0
    ),
    "step_seconds": Term("seconds", "time of the host for each step, whatever is in it", 0.0, 0.5, 0.0),
}
LINK_TERMS: dict[str, Term] = {
    "share": Term("share of peak", "bytes/s that a collective reaches on the links it uses", 0.02, 1.0, 1.0),
    "own_share": Term(
        "share",
        "part of a chip's own shard that a collective copies too, as among threads of one memory",
        0.0,
        1.0,
        0.0,
    ),
    "message_seconds": Term("seconds", "start of a collective on the links of a level", 0.0, 0.01, 0.0),
    "hop_seconds": Term("seconds", "each further chip that a message passes on a level", 0.0, 0.001, 0.0),
}


class Constant(BaseModel):
    """A value, and either its 90% confidence interval or the reason why it was not fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Finite
    low: Finite | None = None
    high: Finite | None = None
    fixed: str | None = None

    @model_validator(mode="after")
    def _fitted_or_fixed(self) -> Constant:
        fitted = self.low is not None and self.high is not None
        if fitted == (self.fixed is not None) or (self.low is None) != (self.high is None):
            raise ValueError("needs low and high of its confidence interval, or in `fixed` why it has none")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"low <= value <= high does not hold: {self.low}, {self.value}, {self.high}")
        return self


class Region(BaseModel):
    """What a profile was fitted to in one phase: the range of each quantity, and which layouts, formats and
    chips."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: Range
    """Parameters of the model."""
    chips: Range
    tokens: Range
    """New tokens of all sequences in one step."""
    context: Range
    """Positions that a query attends to, its own included."""
    layouts: Kinds
    """Layouts, each written `ffn/attention`."""
    weights: Kinds
    """Formats of the weights."""
    activations: Kinds
    """Formats of the activations."""
    chip_names: Kinds

    @model_validator(mode="after")
    def _ranges_rise(self) -> Region:
        for name in ("parameters", "chips", "tokens", "context"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} needs the least, above 0, and the most: {low:g}, {high:g}")
        return self


class LeftOut(BaseModel):
    """How far off the times of one table, model or number of chips were by a fit to all others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: Annotated[int, Field(gt=0, strict=True)]
    median: Annotated[Finite, Field(ge=0)]
    """Median of the sizes of the logarithmic errors."""
    worst: Annotated[Finite, Field(ge=0)]
    inside: Share
    """The share of its times in the 90% interval that all others give."""


class Profile(BaseModel):
    """Efficiencies of a chip, its links and its software stack."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    """What it was fitted to, by whom, and how."""
    clusters: tuple[str, ...] = ()
    """Families of the catalogue that have it by default."""
    constants: dict[str, Constant]
    microbatch_tokens: Annotated[int, Field(gt=0, strict=True)] | None = None
    """How the runtime cuts a batch for pipeline stages, where that is known: into one microbatch a
    stage only if the stages divide it, and then into halves while one has more new tokens than this. None:
    always into one a stage."""
    reduce: Float | None = None
    """Format in which the runtime sends partial sums, where that is known, whatever the plan has. None: as
    the plan has it."""
    compares: Annotated[bool, Field(strict=True)] = False
    """Whether it was fitted to layouts side by side on the same chips, so that plans may be ranked by it."""
    probe_seconds: Annotated[Finite, Field(gt=0)] | None = None
    """Seconds of the probe, which tell how fast the machine was when `partita calibrate` measured it."""
    region: dict[Phase, Region] = Field(default_factory=dict)
    """What was measured, by phase; a phase that was not measured is left out. Empty: it is not known."""
    residuals: tuple[Finite, ...] = ()
    """Natural logarithms of measured over estimated seconds, of measurements left out of the fit.

    Each has one: where it was left out in several ways, that of the way that gives the widest interval. Of
    measurements kept apart that lie outside the region, what is left for within it (`measure.fit`)."""
    held_out: Annotated[int, Field(gt=1, strict=True)] | None = None
    """How many measurements were left out, where `residuals` has but the sizes of their errors at equal steps
    from the least to the largest, such as every 5%; None: it has all errors."""
    coverage: tuple[Share, ...] = ()
    """At each of `COVERAGES` the share of held-out measurements in intervals made without their setting."""

    left_out: dict[str, LeftOut] = Field(default_factory=dict)
    """By setting: of every way to leave out, that of `residuals` and `coverage` among them."""

    @model_validator(mode="after")
    def _errors_are_whole(self) -> Profile:
        if self.held_out is not None and not 2 <= len(self.residuals) <= self.held_out:
            raise ValueError(f"{len(self.residuals)} residuals cannot stand for {self.held_out} held out")
        if self.coverage and len(self.coverage) != len(COVERAGES):
            raise ValueError(f"coverage needs a share for each of {', '.join(map(str, COVERAGES))}")
        return self

    @model_validator(mode="after")
    def _constants_are_known(self) -> Profile:
        for name, constant in self.constants.items():
            term = term_of(name)
            if term is None:
                known = [*TERMS, *(f"LEVEL[/COLLECTIVE]/{name}" for name in LINK_TERMS)]
                raise ValueError(f"{name} is not a constant; accepted are {', '.join(known)}")
            if not term.low <= constant.value <= term.high:
                raise ValueError(
                    f"{name} = {constant.value:g} is not plausible: {term.low:g} to {term.high:g}"
                )
        return self

    def value(self, name: str) -> float:
        """The value of a constant of `TERMS`, neutral where the profile has none."""
        constant = self.constants.get(name)
        return TERMS[name].neutral if constant is None else constant.value

    def link(self, name: str, level: str, collective: str) -> float:
        """The value of a constant of `LINK_TERMS` on a level ("torus", "switch" ...) for a kind of
        collective."""
        for key in (f"{level}/{collective}/{name}", f"{level}/{name}"):
            if key in self.constants:
                return self.constants[key].value
        return LINK_TERMS[name].neutral


def term_of(name: str) -> Term | None:
    """The term that a constant's name stands for, `switch/all-reduce/share` included; None for any other
    name."""
    if name in TERMS:
        return TERMS[name]
    level, _, rest = name.partition("/")
    *kind, last = rest.split("/")
    if level in LEVELS and last in LINK_TERMS and len(kind) <= 1 and set(kind) <= set(COLLECTIVES):
        return LINK_TERMS[last]
    return None
