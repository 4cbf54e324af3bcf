"""What a plan by the bound says of the estimates that did not rank it: why not, and limits that they break.

Knows nothing about how plans are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.cost.phase_estimate import PhaseEstimate
from partita.planner.load import server
from partita.planner.pair import Pair
from partita.planner.request import Case
from partita.specs.units import format_range, format_seconds

_INSTEAD = "--by estimate plans for what is estimated"


def unranked(chosen: Pair, cases: Sequence[Case]) -> Iterator[str]:
    """Sentences about a pair chosen by the bound; none where it was chosen by the estimate.

    cases: each with the same limits and the same `basis`.
    """
    if chosen.basis != "bound":
        return
    case = cases[0]
    if case.request.basis is None and case.request.objective != "context":
        yield from _why(cases)
    prefill, decode = chosen.prefill.estimate, chosen.decode.estimate
    if prefill is not None and decode is not None:
        yield from _broken(replace(chosen, basis="estimate"), prefill, decode, case)


def _why(cases: Sequence[Case]) -> Iterator[str]:
    """Of the first profile that does not compare layouts."""
    profiles = (case.cluster.profile for case in cases)
    name = next((profile.name for profile in profiles if profile is not None and not profile.compares), None)
    if name is not None:
        yield (
            f"ranked by the bound: profile {name} was not fitted to layouts side by side, so it foretells "
            "times and cannot tell which layout is faster; --by estimate ranks by it all the same"
        )


def _broken(pair: Pair, prefill: PhaseEstimate, decode: PhaseEstimate, case: Case) -> Iterator[str]:
    """Limits that the bound keeps and the estimate of the same pair does not."""
    request = case.request
    ttft, tpot, rate = request.max_ttft, request.max_tpot, request.rate
    if ttft is not None and pair.ttft_seconds > ttft:
        found = format_range(pair.ttft_seconds, prefill.total_interval)
        yield (
            f"prefill: estimated {found} to the first token, over --max-ttft {format_seconds(ttft)}, which "
            f"the bound keeps; {_INSTEAD}"
        )
    step, around = pair.tpot_seconds, decode.step_interval
    if case.interleaved:  # a chunk of a prompt is read between two steps
        step += pair.chunk_seconds
        around = around[0] + prefill.step_interval[0], around[1] + prefill.step_interval[1]
    if tpot is not None and step > tpot:
        chunk = " and the chunk before it" if case.interleaved else ""
        yield (
            f"decode: estimated {format_range(step, around)} a step{chunk}, over --max-tpot "
            f"{format_seconds(tpot)}, which the bound keeps; {_INSTEAD}"
        )
    if rate is not None:
        load = server(pair, request.traffic)
        if not load.sustains(rate):
            fast, slow = (
                float(
                    1
                    / (
                        load.prefill_seconds * p / prefill.total_seconds
                        + load.decode_seconds * d / decode.step_seconds
                    )
                )
                for p, d in zip(prefill.total_interval, decode.step_interval, strict=True)
            )
            yield (
                f"estimated {load.requests_per_second:.3g} prompts a second ({slow:.3g} to {fast:.3g}), "
                f"below --rate {rate:.3g}/s, which the bound sustains; {_INSTEAD}"
            )
