"""A plan under load: what a steady stream of requests costs a server, and how much of it the server sustains.

The server has a fixed number of slots. Its decode step writes one token for every slot and takes the same
time however many are filled; a slot that has written its request's last token takes the next request at
once; between steps the server prefills. Everything here is a long-run mean that follows from counting: no
queue is simulated and nothing is assumed of how requests arrive. Its figures are bounds or estimates as the
times are that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partita.cost.number import Number
from partita.planner.pair import Pair, step_seconds
from partita.specs.traffic import Traffic

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """A plan under load. Every field is a number, or an array with one entry for each of many plans.

    chips: chips that the server occupies.
    slots: sequences decoded together.
    prefill_seconds: of the whole server for one prompt, the mean over prompts: a prefill of b prompts that
        takes t counts t / b for each.
    step_seconds: one decode step with all slots filled, at the mean context of a slot.
    mean_output: tokens that one sequence writes, the mean over requests.
    samples: sequences that are written for one prompt.
    """

    chips: Number
    slots: Number
    prefill_seconds: Number
    step_seconds: Number
    mean_output: Number
    samples: Number = 1

    @property
    def decode_seconds(self) -> Number:
        """Seconds that the server decodes for one request: samples x mean_output x step_seconds / slots."""
        return self.samples * self.mean_output * self.step_seconds / self.slots

    @property
    def seconds_per_request(self) -> Number:
        """Seconds of the whole server for one request, slots full: prefill_seconds + decode_seconds."""
        return self.prefill_seconds + self.decode_seconds

    @property
    def prefill_share(self) -> Number:
        """Part of the server's time that prefill takes when slots are full, 0 to 1.

        With each phase on chips of its own, share : (1 - share) is the ratio of prefill servers to decode
        servers at which both are full.
        """
        return self.prefill_seconds / self.seconds_per_request

    @property
    def requests_per_second(self) -> Number:
        """The highest rate that is sustained: 1 / seconds_per_request."""
        return 1 / self.seconds_per_request

    @property
    def output_tokens_per_second(self) -> Number:
        """Output tokens per second at the highest rate: requests_per_second x samples x mean_output."""
        return self.requests_per_second * self.samples * self.mean_output

    @property
    def chip_seconds_per_request(self) -> Number:
        """Chip-seconds of one request at the highest rate: chips x seconds_per_request."""
        return self.chips * self.seconds_per_request

    @property
    def chip_seconds_per_output_token(self) -> Number:
        """Chip-seconds of a token at the highest rate: chip_seconds_per_request / (samples x mean_output)."""
        return self.chip_seconds_per_request / (self.samples * self.mean_output)

    def utilisation(self, rate: Number) -> Number:
        """Work that `rate` requests a second bring, over what the server can do: rate x seconds_per_request.

        Up to 1 it is sustained, above 1 the queue grows without end. Just below 1 it is sustained with
        long waits: where arrivals are irregular, the mean wait grows as 1 / (1 - utilisation).
        """
        return rate * self.seconds_per_request

    def sustains(self, rate: Number) -> NDArray[np.bool_]:
        """Whether the server keeps up with `rate` requests per second (see `utilisation`)."""
        return np.asarray(self.utilisation(rate)) <= 1

    def served(self, rate: Number) -> Number:
        """Requests per second that get through when `rate` arrive: no more than the highest rate."""
        return np.minimum(rate, self.requests_per_second)

    def output_token_seconds(self, rate: Number) -> Number:
        """Mean time between two tokens of one sequence at `rate` requests per second, prefills included.

        Prefills take the part rate x prefill_seconds of all time and decode steps the rest, so a step comes
        every step_seconds / (1 - rate x prefill_seconds). Above the highest rate requests wait outside, so
        it is that of the highest rate.
        """
        return self.step_seconds / (1 - self.served(rate) * self.prefill_seconds)

    def filled_slots(self, rate: Number) -> Number:
        """Mean number of sequences being decoded at `rate` requests per second, at most `slots`.

        By Little's law, rate x samples x mean_output x output_token_seconds.
        """
        written = self.served(rate) * self.samples * self.mean_output
        return np.minimum(written * self.output_token_seconds(rate), self.slots)

    def price_per_million_output_tokens(
        self, price_per_chip_hour: Number, rate: Number | None = None
    ) -> Number:
        """The price, in that of a chip's hour: chips are paid by the hour, whether used or not.

        price x chips / 3600 x 10^6 / (output tokens per second), at the highest rate or at `rate`.
        """
        requests = self.requests_per_second if rate is None else self.served(rate)
        tokens = requests * self.samples * self.mean_output
        return price_per_chip_hour * self.chips / SECONDS_PER_HOUR * 1e6 / tokens

    def as_json(self, rate: float | None = None, price_per_chip_hour: float | None = None) -> dict[str, Any]:
        """The figures of one plan at the highest rate, and at `rate` requests per second where given."""
        names = ("seconds_per_request", "requests_per_second", "output_tokens_per_second", "prefill_share")
        names += ("chip_seconds_per_request", "chip_seconds_per_output_token")
        figures: dict[str, Any] = {name: float(getattr(self, name)) for name in names}
        if rate is not None:
            figures |= {"rate": rate, "sustained": bool(self.sustains(rate))}
            for name in ("utilisation", "output_token_seconds", "filled_slots"):
                figures[name] = float(getattr(self, name)(rate))
        if price_per_chip_hour is not None:
            price = self.price_per_million_output_tokens(price_per_chip_hour, rate)
            figures["price_per_chip_hour"] = price_per_chip_hour
            figures["price_per_million_output_tokens"] = float(price)
        return figures


def server_of(pair: Pair) -> Server:
    """The server that a plan's pair of layouts makes for its own workload, all requests of that shape."""
    workload = pair.decode.setting.workload
    samples = workload.samples
    return Server(
        chips=pair.decode.setting.cluster.chips,
        slots=workload.batch,
        prefill_seconds=pair.prefill_seconds * samples / workload.batch,
        step_seconds=pair.decode_seconds / workload.output,
        mean_output=workload.output,
        samples=samples,
    )


def serve(
    traffic: Traffic,
    *,
    chips: Number,
    slots: Number,
    prefill_seconds: Callable[[NDArray[np.int64], NDArray[np.int64]], ArrayLike],
    step_seconds: Callable[[float], Number],
    samples: Number = 1,
    buckets: int = 16,
) -> Server:
    """The server for a distribution of requests.

    prefill_seconds: from prompt and prefix lengths [n] (n at most `buckets`, at least 4) to the server's
        seconds for one such prompt, [n] or [plans, n].
    step_seconds: from a context in tokens, of every slot, to the seconds of a decode step, one number or
        [plans]. It is called with `mean_slot_context(traffic)`: exact where a step's time is linear in the
        context, and too low where it is convex (a sum of maxima).
    """
    prompts = Traffic(traffic.prompt, np.ones(traffic.requests), traffic.prefix, traffic.weight)
    few = prompts.buckets(buckets)
    seconds = np.asarray(prefill_seconds(few.prompt, few.prefix)) @ few.weight
    return Server(
        chips=chips,
        slots=slots,
        prefill_seconds=seconds,
        step_seconds=step_seconds(mean_slot_context(traffic)),
        mean_output=traffic.mean_output,
        samples=samples,
    )


def mean_slot_context(traffic: Traffic) -> float:
    """Cached tokens that a decode step finds in a slot, the mean over slots and time.

    A request is in a slot for as many steps as it has output tokens, so it is met in proportion to them;
    its step t = 1 ... output attends to prompt + t tokens, its own included. With w the shares of requests:
    sum w output (prompt + (output + 1) / 2) / sum w output.
    """
    met = traffic.weight * traffic.output
    return float(met @ (traffic.prompt + (traffic.output + 1) / 2) / met.sum())


def server(pair: Pair, traffic: Traffic | None) -> Server:
    """The server that a pair makes for its own workload, or for the requests of `traffic`."""
    if traffic is None:
        return server_of(pair)
    setting, batch = pair.decode.setting, pair.prefill.batch

    def seconds(prompt: int, prefix: int) -> float:
        """Seconds of one prompt, its keys and values moved to decode's layout."""
        context = max(setting.workload.context, prompt + 1)
        sizes = {"prompt": prompt, "prefix": prefix, "context": context}
        changed = pair.priced_in(replace(setting, workload=setting.workload.resized(**sizes)))
        return (changed.ttft_seconds + changed.reshard_seconds) / batch

    def prefill(prompt: np.ndarray, prefix: np.ndarray) -> np.ndarray:
        return np.array([seconds(int(p), int(x)) for p, x in zip(prompt, prefix, strict=True)])

    def step(context: float) -> float:
        workload = setting.workload.resized(context=max(1, round(context)))
        return step_seconds(pair.decode.priced_in(replace(setting, workload=workload)), pair.basis)

    return serve(
        traffic,
        chips=setting.cluster.chips,
        slots=pair.decode.batch,
        prefill_seconds=prefill,
        step_seconds=step,
        samples=setting.workload.samples,
    )
