"""Why a pair of layouts was chosen, in sentences with numbers; and where its estimate contradicts it.

A plan by the bound says why the estimate did not rank it, and which limits the estimate breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.cost.number import Number
from partita.cost.phase_estimate import PhaseEstimate
from partita.cost.prediction import Prediction, predict
from partita.planner.pair import Basis, Objective, Pair, expected, step_seconds
from partita.planner.request import Case
from partita.planner.search import keeps_limits
from partita.planner.serving import server
from partita.sharding.layout import plan_storage
from partita.specs.profile import Phase
from partita.specs.units import format_bytes, format_range, format_seconds

_LIMITED_BY = {
    "compute": "limited by the matmuls",
    "weights": "limited by reading the weights",
    "kv": "limited by reading the KV cache",
}


def reasons(
    objective: Objective, chosen: Pair, pairs: Sequence[Pair], case: Case | None = None
) -> Iterator[str]:
    """What limits each phase, and by how much the best of every other layout loses, or why it is out.

    case: that of the chosen pair, whose limits the others would have to keep. Times are bounds or estimates,
    as those of `chosen` are.
    """
    basis = chosen.basis
    phases: tuple[Phase, ...] = ("prefill", "decode")
    for phase in phases:
        best: Prediction = getattr(chosen, phase)
        yield f"{phase}: {best.layout.roles}; {_parts(best, basis)}"
        rivals: dict[str, Pair] = {}
        for pair in pairs:
            rival: Prediction = getattr(pair, phase)
            ffn = rival.layout.roles.ffn
            if ffn == best.layout.roles.ffn:
                continue
            before = rivals.get(ffn)
            if before is None or _rank(rival, basis) < _rank(getattr(before, phase), basis):
                rivals[ffn] = pair
        for ffn, pair in rivals.items():
            rival = getattr(pair, phase)
            if not rival.fits:
                memory = rival.memory_bytes
                yield (
                    f"{phase}: {ffn} does not fit: {format_bytes(memory['total'])} "
                    f"of {format_bytes(memory['capacity'])} per chip"
                )
            else:
                seconds = step_seconds(rival, basis)
                ratio = seconds / step_seconds(best, basis)
                rejected = _rejected(objective, chosen, pair, phase, case) if ratio < 1 else ""
                yield f"{phase}: {rival.layout.roles} {slower(ratio)} ({_ms(seconds)}){rejected}"
    if chosen.prefill.padding:
        padded = ", ".join(f"{k} {v['from']} -> {v['to']}" for k, v in chosen.prefill.padding.items())
        share = chosen.prefill.padded_parameters / chosen.prefill.setting.model.parameters
        yield f"padding: {padded}; {share:.1%} more parameters"


def _rejected(objective: Objective, chosen: Pair, rival: Pair, phase: Phase, case: Case | None) -> str:
    """Why a layout that takes a phase less time was not chosen: with it beside the chosen layout of the other
    phase, where one mesh has both, else with itself."""
    here, other = chosen.decode.setting, "decode" if phase == "prefill" else "prefill"
    roles = {other: getattr(rival, other).layout.roles, phase: getattr(rival, phase).layout.roles}
    if rival.decode.setting.mesh == here.mesh:
        roles[other] = getattr(chosen, other).layout.roles
        storage = plan_storage(here.model, here.mesh, roles["decode"], roles["prefill"])
        prefill = predict(here, "prefill", roles["prefill"], storage)
        rival = Pair(prefill, predict(here, "decode", roles["decode"], storage), chosen.basis)
    beside = f"with {other} in {roles[other]}"
    if not rival.fits:
        held = format_bytes(float(rival.fullest[1].total))
        return f", but {beside} a chip would hold {held} of {format_bytes(here.capacity_bytes)}"
    if case is not None and not keeps_limits(rival, case):
        return f", but {beside} a limit is not kept"
    before, after = chosen.score(objective), rival.score(objective)
    if after <= before:
        return f", but {beside} the plan's {objective} is the same, and the chosen layout is simpler"
    many = before > 0 and after >= 2 * before
    worse = f"{after / before:,.3g} times as much" if many else f"{(after - before) / abs(before):.1%} worse"
    moving = rival.reshard_seconds - chosen.reshard_seconds
    moved = f", of which moving caches is {_ms(moving)} more a prefill" if moving > 0 else ""
    return f", but {beside} the plan's {objective} is {worse}{moved}"


def _parts(prediction: Prediction, basis: Basis) -> str:
    """What a step is made of, at peak and as estimated."""
    bound = prediction.bound
    at_peak = (
        f"{_limited_by(prediction)}: compute {_ms(bound.compute_seconds)}, "
        f"memory {_ms(bound.memory_seconds)}, communication {_ms(bound.communication_seconds)}"
    )
    if basis == "bound":
        return at_peak
    parts = expected(prediction).step_parts
    besides, idle = parts["layer_seconds"] + parts["host_seconds"], parts["idle_seconds"]
    return (
        f"estimated {_ms(step_seconds(prediction, basis))}: operations "
        f"{_ms(parts['operation_seconds'])}, communication {_ms(parts['communication_seconds'])}"
        f"{f', layers and host {_ms(besides)}' if besides else ''}"
        f"{f', waiting for other stages {_ms(idle)}' if idle else ''}; at peak {at_peak}"
    )


def _rank(prediction: Prediction, basis: Basis) -> tuple[bool, float]:
    return not prediction.fits, step_seconds(prediction, basis)


def slower(ratio: float) -> str:
    """Says what takes `ratio` times as long: "is 22.0% slower", "takes 11.1 times as long"."""
    if ratio >= 2:
        return f"takes {ratio:,.0f} times as long" if ratio >= 100 else f"takes {ratio:.3g} times as long"
    return f"is {abs(ratio - 1):.1%} {'slower' if ratio >= 1 else 'faster'}"


def _limited_by(prediction: Prediction) -> str:
    """What limits a step at peak, in words."""
    largest = prediction.bound.binds
    axes = largest.removeprefix("link:")
    return (
        _LIMITED_BY.get(largest) or f"limited by the links of {'axis' if len(axes) == 1 else 'axes'} {axes}"
    )


def _ms(seconds: Number) -> str:
    return format_seconds(float(seconds))


_INSTEAD = "--by estimate plans by the estimate"


def about_the_estimate(chosen: Pair, asked: Sequence[Case]) -> Iterator[str]:
    """Sentences about a pair chosen by the bound; none where it was chosen by the estimate.

    asked: the cases of the user's request, which share its limits and `basis`.
    """
    if chosen.basis != "bound":
        return
    case = asked[0]
    if case.request.basis is None and case.request.objective != "context":
        yield from _why(asked)
    prefill, decode = chosen.prefill.estimate, chosen.decode.estimate
    if prefill is not None and decode is not None:
        yield from _broken(replace(chosen, basis="estimate"), prefill, decode, case)


def _why(asked: Sequence[Case]) -> Iterator[str]:
    """Why the estimate does not rank: the first profile that does not compare layouts."""
    profiles = (case.cluster.profile for case in asked)
    name = next((profile.name for profile in profiles if profile is not None and not profile.compares), None)
    if name is not None:
        yield (
            f"ranked by the bound: profile {name} was not fitted to layouts side by side, so it predicts "
            "times but not which layout is faster; --by estimate ranks by it anyway"
        )


def _broken(pair: Pair, prefill: PhaseEstimate, decode: PhaseEstimate, case: Case) -> Iterator[str]:
    """Limits that the bound meets and the estimate of the same pair does not."""
    ttft, tpot, rate = case.request.max_ttft, case.request.max_tpot, case.request.rate
    if ttft is not None and pair.ttft_seconds > ttft:
        found = format_range(pair.ttft_seconds, prefill.total_interval)
        yield (
            f"prefill: estimated {found} to the first token, over --max-ttft {format_seconds(ttft)}, which "
            f"the bound meets; {_INSTEAD}"
        )
    step, around = pair.tpot_seconds, decode.step_interval
    if case.interleaved:  # a chunk of a prompt is read between two steps
        step += pair.chunk_seconds
        around = around[0] + prefill.step_interval[0], around[1] + prefill.step_interval[1]
    if tpot is not None and step > tpot:
        chunk = " and the chunk before it" if case.interleaved else ""
        yield (
            f"decode: estimated {format_range(step, around)} a step{chunk}, over --max-tpot "
            f"{format_seconds(tpot)}, which the bound meets; {_INSTEAD}"
        )
    if rate is not None:
        load = server(pair, case.request.traffic)
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
                f"estimated {load.requests_per_second:.3g} prompts/s ({slow:.3g} to {fast:.3g}), "
                f"below --rate {rate:.3g}/s, which the bound sustains; {_INSTEAD}"
            )
