"""What number formats cost in quality: a model's logits on a text in each of them, beside those in float32.

The text is cut into windows, each a prompt of its own: every token of it but the first is predicted from all
before it. A prompt attends to its keys and values as the cache holds them, so what an int8 cache costs is in
these logits too. Knows nothing about files and tables.

`quality.txt` was written for this project and has its licence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from partita.checkpoints.protocol import Checkpoint
from partita.checkpoints.tokenizer import Tokenizer
from partita.engine.engine import Engine, EngineOptions
from partita.engine.memory import AskedLogits
from partita.errors import InputError
from partita.sharding.mesh import Mesh
from partita.sharding.roles import Roles
from partita.specs.formats import Formats

NAMES = ("f32", "bf16", "int8", "int8+kv")
WINDOW = 512
"""Tokens of a window, unless the model takes fewer."""

_ROWS = 64  # tokens whose logits are in float64 at a time
_COMPARED = 9  # arrays of those that a comparison makes

Progress = Callable[[str, int, int], None]


def formats_named(name: str, activations: str = "f32") -> Formats:
    """One of `NAMES`: all in f32, all in bf16, weights in int8, weights and cache in int8.

    activations: "f32" or "bf16", of what int8 leaves in floating point. Raises InputError for another name.
    """
    if name not in NAMES:
        raise InputError("formats", name, f"accepted are {', '.join(NAMES)}")
    if name in ("f32", "bf16"):
        return Formats.all_in(name)
    kv = "int8" if name == "int8+kv" else activations
    return Formats.model_validate({"weights": "int8", "activations": activations, "kv": kv})


@dataclass(frozen=True)
class Difference:
    """Logits of some tokens beside those in float32, and beside the tokens that follow in the text."""

    tokens: int = 0
    """Predicted ones."""
    logits: int = 0
    log_loss: float = 0.0
    """Nats, over all tokens."""
    loss_change: float = 0.0
    """Nats above float32's, over all tokens."""
    change_squares: float = 0.0
    """The sum of the squares of what each token adds to that."""
    divergence: float = 0.0
    """Kullback-Leibler divergence of these predictions from float32's, in nats, over all tokens."""
    agreeing: int = 0
    """Tokens whose likeliest successor is float32's."""
    squares: float = 0.0
    largest_error: float = 0.0

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.tokens + other.tokens,
            self.logits + other.logits,
            self.log_loss + other.log_loss,
            self.loss_change + other.loss_change,
            self.change_squares + other.change_squares,
            self.divergence + other.divergence,
            self.agreeing + other.agreeing,
            self.squares + other.squares,
            max(self.largest_error, other.largest_error),
        )

    @property
    def perplexity(self) -> float:
        return math.exp(self.log_loss / self.tokens)

    @property
    def perplexity_change(self) -> float:
        """What perplexity has gained on float32's, as a share of that."""
        return math.expm1(self.loss_change / self.tokens)

    @property
    def perplexity_change_error(self) -> float:
        """The standard error of that share, were another text of as many tokens taken: of the mean of the
        tokens' changes, as if they were independent."""
        mean = self.loss_change / self.tokens
        variance = max(self.change_squares / self.tokens - mean**2, 0)
        return math.exp(mean) * math.sqrt(variance / self.tokens)

    @property
    def mean_divergence(self) -> float:
        """Nats a token."""
        return self.divergence / self.tokens

    @property
    def agreement(self) -> float:
        """Share of tokens with float32's likeliest successor."""
        return self.agreeing / self.tokens

    @property
    def rms_error(self) -> float:
        """Root of the mean square of what logits are off."""
        return math.sqrt(self.squares / self.logits)


def compare(exact: np.ndarray, found: np.ndarray, following: Sequence[int]) -> Difference:
    """Logits [T, V] in float32 and in some format, and the T tokens that follow in the text."""
    total = Difference()
    for start in range(0, len(following), _ROWS):
        rows = slice(start, start + _ROWS)
        tokens = np.asarray(following[rows])
        a, b = (logits[rows][: len(tokens)].astype(np.float64) for logits in (exact, found))
        log_a, log_b = _log_softmax(a), _log_softmax(b)
        off, at = np.abs(b - a), (np.arange(len(tokens)), tokens)
        change = log_a[at] - log_b[at]
        total += Difference(
            tokens=len(tokens),
            logits=off.size,
            log_loss=float(-log_b[at].sum()),
            loss_change=float(change.sum()),
            change_squares=float((change**2).sum()),
            divergence=float((np.exp(log_a) * (log_a - log_b)).sum()),
            agreeing=int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum()),
            squares=float((off**2).sum()),
            largest_error=float(off.max()),
        )
    return total


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def windows(ids: Sequence[int], size: int, begin: int | None = None) -> list[list[int]]:
    """Tokens cut into as few windows as there can be, all of one length, at most `size`; fewer tokens than
    there are windows are left over at the end. `begin`: a token that is put before each window.

    Raises InputError where there is nothing to predict.
    """
    front = [] if begin is None else [begin]
    room, least = size - len(front), 2 - len(front)
    if size < 2:
        raise InputError("window", size, "2 or more tokens are accepted")
    if len(ids) < least:
        raise InputError("tokens", len(ids), "2 or more tokens are needed: one to go on from, one to predict")
    count = -(-len(ids) // room)
    each = len(ids) // count
    return [[*front, *ids[i * each : (i + 1) * each]] for i in range(count)]


def windows_of(
    text: str,
    tokenizer: Tokenizer,
    max_context: int | None,
    tokens: int | None = None,
    size: int | None = None,
) -> list[list[int]]:
    """Windows of the first `tokens` tokens of a text, each begun as the tokenizer begins a text."""
    begin = tokenizer.bos_id if tokenizer.add_bos else None
    ids = tokenizer.encode(text)
    ids = ids[1:] if begin is not None and ids[:1] == [begin] else ids
    if tokens is not None and tokens < 2:
        raise InputError("tokens", tokens, "2 or more tokens are accepted")
    if size is not None and max_context is not None and not 2 <= size <= max_context:
        raise InputError("window", size, f"2 to {max_context} tokens are accepted, the most the model takes")
    return windows(ids[:tokens], min(WINDOW, max_context or WINDOW) if size is None else size, begin)


def shipped_text() -> str:
    """Prose, lists, a letter and a little code: about 1,000 tokens."""
    return files("partita").joinpath("measure", "quality.txt").read_text(encoding="utf-8")


def measure(
    checkpoint: Checkpoint,
    parts: Sequence[Sequence[int]],
    formats: Sequence[Formats],
    mesh: Mesh,
    prefill: Roles,
    options: EngineOptions | None = None,
    progress: Progress | None = None,
) -> Iterator[Difference]:
    """How far each of the formats is from float32, which is run first, over all windows `parts`.

    One copy of the weights is held at a time, and float32's logits, 4 bytes a token of the text and of the
    vocabulary, on the host. progress: told what is done, how far, of how much. Raises InputError (field
    "memory") where there is too little of it, unless the options force it.
    """
    width, vocabulary = max(len(ids) for ids in parts), checkpoint.model.vocabulary
    compared = _COMPARED * 8 * vocabulary * _ROWS
    kept = sum(len(ids) for ids in parts)
    exact: list[np.ndarray] = []
    for number, chosen in enumerate([formats_named("f32"), *formats], start=-1):
        name = "f32" if number < 0 else f"{number + 1} of {len(formats)}"
        engine = Engine(
            checkpoint,
            mesh,
            prefill,
            prefill,
            formats=chosen,
            options=replace(options or EngineOptions(), first=AskedLogits(width, kept, compared)),
            progress=_told(progress, f"{name}: placing weights"),
        )
        kept = 0  # float32's are there from now on
        total = Difference()
        tell = _told(progress, f"{name}: running")
        for i, ids in enumerate(parts):
            found = engine.logits([ids])[0][:-1]
            if number < 0:
                exact.append(found)
            total += compare(exact[i], found, ids[1:])
            if tell:
                tell(i + 1, len(parts))
        del engine  # before the next one's weights are placed
        yield total


def _told(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, of: progress(what, done, of)
