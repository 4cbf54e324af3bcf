"""When decode leaves one layout for another that the same weights are stored for.

Another layout is better by so many seconds a step, and moving the cache costs so many. Nobody knows how long
the load will stay as it is, so the move is made once the savings that were missed since the other layout
became better have reached its cost: whatever comes, that costs at most twice what a move at the best moment
would have (the ski-rental argument: Karlin et al., "Competitive snoopy caching", 1988). A load that goes to
and fro around a threshold takes back what had been missed, so it moves nothing: that is the hysteresis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf


class Switching:
    """Chooses a decode layout by its number.

    step_seconds: from sequences and all their cached tokens to the seconds of a step in each layout.
    move_seconds: from all cached tokens, the layout that is left and the one that is taken to the seconds of
        moving the cache.
    """

    def __init__(
        self,
        step_seconds: Callable[[int, int], Sequence[float]],
        move_seconds: Callable[[int, int, int], float],
        layout: int = 0,
    ):
        self.step_seconds, self.move_seconds, self.layout = step_seconds, move_seconds, layout
        self.moves = 0
        self._missed = 0.0  # seconds that the best layout would have saved since it became better
        self._saving = 0.0  # of one more step
        self._move = inf

    def choose(self, sequences: int, cached: int) -> bool:
        """Sees what the next step is for; whether the layout has changed, and the cache is to be moved."""
        seconds = self.step_seconds(sequences, cached)
        best = min(range(len(seconds)), key=seconds.__getitem__)
        rival = best if best != self.layout else _second(seconds, best)
        self._saving = 0.0 if rival is None else seconds[self.layout] - seconds[rival]
        if best == self.layout:
            self._move = inf
            return False
        self._move = self.move_seconds(cached, self.layout, best)
        if self._missed < self._move:
            return False
        self.layout, self._missed, self._saving, self._move = best, 0.0, 0.0, inf
        self.moves += 1
        return True

    def went(self, steps: int) -> None:
        """So many steps like the one that was seen have gone."""
        self._missed = max(0.0, self._missed + steps * self._saving)

    def steps(self) -> float:
        """Steps like this after which `choose` may change the layout."""
        if self._saving <= 0 or self._move == inf:
            return inf
        return max(1, ceil((self._move - self._missed) / self._saving))


def _second(seconds: Sequence[float], best: int) -> int | None:
    others = [i for i in range(len(seconds)) if i != best]
    return min(others, key=seconds.__getitem__) if others else None
