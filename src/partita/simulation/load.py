"""What a server is sent: requests with their lengths, and when they come.

In an open loop they come when they come; in a closed loop each client sends its next request when the one
before is answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partita.errors import InputError
from partita.specs.traffic import Traffic

MOST_REQUESTS = 10**7
ARRIVALS = ("poisson", "gamma:SHAPE", "even")


@dataclass(frozen=True, eq=False)
class Load:
    """Requests in the order in which they come: prompt, output and prefix in tokens, int64 [n].

    arrival: seconds at which each comes, ascending, float64 [n]; None for a closed loop of `clients`.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    prefix: NDArray[np.int64]
    arrival: NDArray[np.float64] | None = None
    clients: int = 0

    @property
    def requests(self) -> int:
        return len(self.prompt)

    @property
    def longest(self) -> int:
        """Positions of the cache that the longest request fills, but for its last token."""
        return int((self.prompt + self.output).max()) - 1

    def check_skip(self, skip: int) -> None:
        """Raises InputError (field "skip") where no request would count without the first ones."""
        if not 0 <= skip < self.requests:
            raise InputError("skip", skip, f"0 to {self.requests - 1:,} of the requests are accepted")


def drawn(traffic: Traffic, requests: int, seed: int) -> Load:
    """Requests drawn from traffic by their weights, all at 0 s. Raises InputError (field "requests")."""
    if not 1 <= requests <= MOST_REQUESTS:
        raise InputError("requests", requests, f"a whole number from 1 to {MOST_REQUESTS:,} is accepted")
    if traffic.requests == 1:
        which = np.zeros(requests, np.int64)
    else:
        which = np.random.default_rng([seed, 0]).choice(traffic.requests, requests, p=traffic.weight)
    return Load(traffic.prompt[which], traffic.output[which], traffic.prefix[which], np.zeros(requests))


def open_loop(load: Load, rate: float, arrivals: str = "poisson", seed: int = 0) -> Load:
    """The same requests at so many a second on average: with gamma distributed gaps of shape SHAPE, 1 being
    Poisson and less being bursts, or evenly. Raises InputError (field "arrivals")."""
    shape = _shape(arrivals)
    if shape is None:
        gaps = np.full(load.requests, 1 / rate)
    else:
        gaps = np.random.default_rng([seed, 1]).gamma(shape, 1 / (shape * rate), load.requests)
    return Load(load.prompt, load.output, load.prefix, np.cumsum(gaps) - gaps[0])


def closed_loop(load: Load, clients: int) -> Load:
    """The same requests by so many clients. Raises InputError (field "clients")."""
    if not 1 <= clients <= load.requests:
        raise InputError("clients", clients, f"1 to {load.requests:,} (the requests) are accepted")
    return Load(load.prompt, load.output, load.prefix, None, clients)


def replay(traffic: Traffic, arrival: NDArray[np.float64], requests: int | None = None) -> Load:
    """The requests of a trace as they came, or the first of them; the first comes at 0."""
    order = np.argsort(arrival, kind="stable")[:requests]
    at = arrival[order]
    return Load(traffic.prompt[order], traffic.output[order], traffic.prefix[order], at - at[0])


def _shape(text: str) -> float | None:
    """The shape of the gaps' gamma distribution; None for even ones."""
    if text in ("poisson", "even"):
        return 1.0 if text == "poisson" else None
    name, _, number = text.partition(":")
    try:
        shape = float(number) if name == "gamma" else 0.0
    except ValueError:
        shape = 0.0
    if not 1e-3 <= shape <= 1e6:
        raise InputError("arrivals", text, f"accepted are {', '.join(ARRIVALS)}, such as gamma:0.5")
    return shape
