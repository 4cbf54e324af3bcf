"""The scheduler on the cost model's clock: what users of a server see under a load."""

from partita.simulation.load import Load, closed_loop, drawn, open_loop, replay
from partita.simulation.prices import Prices, Pricing, Sizes
from partita.simulation.result import Limits, Result
from partita.simulation.run import Simulated, simulate

__all__ = [
    "Limits",
    "Load",
    "Prices",
    "Pricing",
    "Result",
    "Simulated",
    "Sizes",
    "closed_loop",
    "drawn",
    "open_loop",
    "replay",
    "simulate",
]
