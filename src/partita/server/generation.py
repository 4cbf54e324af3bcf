"""One request on its way through the loop, and the ways in which it may end before its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from partita.engine.slots import Prompts
from partita.engine.stopping import Ending, Piece
from partita.scheduler import Request
from partita.server.grammar import Follower, Grammar
from partita.specs.sampling import Sampling


class Busy(Exception):
    """The queue is full; `seconds` is when it is worth while to try again."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full; try again in {seconds} s")
        self.seconds = seconds


class Stopping(Exception):
    """The server takes no more requests."""

    def __init__(self) -> None:
        super().__init__("the server is stopping and takes no more requests")


class Failed(Exception):
    """A step failed under the request; the server goes on."""


class TimedOut(Exception):
    """A request's deadline has passed."""

    def __init__(self) -> None:
        super().__init__("the request took longer than the server allows")


Tell = Callable[[int, Piece | Exception], None]
"""Is told each piece of a sample, by its number, or why there will be no more (of sample -1: of all)."""


@dataclass(eq=False)
class Generation:
    """One request on its way: its prompt's tokens, how they go on, and who is told."""

    ids: Sequence[int]
    sampling: Sampling
    endings: list[Ending]  # of each sample
    tell: Tell
    request: Request
    seed: int
    came: float  # seconds of `time.monotonic`
    began: float = 0.0  # when its prompt was begun
    first: float = 0.0  # when its first token was there
    last: float = 0.0
    grammar: Grammar | None = None  # what the text must follow
    followers: list[Follower] = field(default_factory=list)  # of each sample, where there is a grammar
    prompts: Prompts | None = None
    tokens: int = 0  # written, of all samples
    failed: bool = False  # it has been told why there is no more

    def __post_init__(self) -> None:
        if self.grammar is not None:
            self.followers = [self.grammar.follower() for _ in range(self.sampling.n)]

    def goes_on(self, sample: int, token: int) -> bool:
        """Whether anything may come after this token of a sample, by its grammar."""
        return self.grammar is None or self.followers[sample].took(token)

    @property
    def reused(self) -> int:
        """Tokens of the prompt that did not have to be read."""
        return self.request.reused
