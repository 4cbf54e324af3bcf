"""A plan as text: the layouts, why they were chosen, the runners-up, and the analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.advice.advice import Advice
from partita.advice.compare import Priced, compare
from partita.advice.jax_engines import other_engines, partition_specs
from partita.planner.disaggregation import DisaggregatedPlan
from partita.planner.pair import Pair
from partita.planner.plan import Plan
from partita.report import advice as shown
from partita.report.compare import comparison
from partita.report.drafts import drafts_table
from partita.report.frontier import frontier_table
from partita.report.memory import memory_table
from partita.report.predictions import estimate_note, phase_text, prediction_table, step_text
from partita.report.tables import layout_text, limit_text, plain_table
from partita.specs.units import format_bytes, format_count, format_range, format_seconds


def plan(
    advice: Advice,
    pools: DisaggregatedPlan | None = None,
    other: Priced | None = None,
    *,
    engines: bool = False,
    warnings: Sequence[str] = (),
) -> Group:
    """Everything about a plan; `other` is a plan to compare with, `warnings` are about the pools."""
    found = advice.plan
    parts: list[RenderableType] = [
        _head(found),
        *_summary(found),
        *(Text(str(caution)) for caution in found.cautions),
        prediction_table([found.prefill, found.decode], alone=False),
        memory_table(found.chosen),
        *_total(found),
        estimate_note(found.predictions()),
        *_space(found),
        *_server(advice),
        Text(),
        _why(found),
        Text(),
        _runners_up(found),
    ]
    for phase, broken in advice.rules.items():
        if broken:
            parts += [Text(), shown.rules(broken, phase)]
    parts += [
        Text(),
        shown.crossovers(advice.crossovers),
        Text(),
        shown.sensitivities(advice.sensitivities),
    ]
    if len(found.frontier) > 2:
        parts += [Text(), frontier_table(found)]
    if advice.drafted:
        parts += [Text(), drafts_table(advice.drafted, found.ranked_by)]
    if pools is not None:
        parts += [Text(), disaggregated(pools, found), *map(Text, warnings)]
    if other is not None:
        parts += [Text(), comparison(compare(found, other), "this plan", "the other")]
    if engines:
        flags = other_engines(found.chosen)
        parts += [Text(), shown.other_engines(flags, partition_specs(found.chosen))]
    return Group(*parts)


def _head(found: Plan) -> Text:
    setting = found.decode.setting
    workload = setting.workload
    basis = "" if found.objective == "context" else f" by the {found.ranked_by}"
    stages = f", {setting.stages} pipeline stages" if setting.stages > 1 else ""
    return Text(
        f"{setting.model.name} ({format_count(setting.model.parameters)} parameters) on "
        f"{setting.cluster.name}, mesh {setting.mesh}{stages}: prompts of {workload.prompt}, outputs of "
        f"{workload.output} tokens, weights {setting.formats.weights}, for {found.objective}{basis}; best of "
        f"{found.configurations:,} combinations of mesh, layout and batch",
        style="bold",
    )


def _summary(found: Plan) -> list[Text]:
    """TTFT, TPOT and throughput, by the estimate where there is a profile and by the bound."""
    texts = []
    for name, basis in (("estimated", "estimate"), ("bound", "bound")):
        if basis == "estimate" and found.decode.estimate is None:
            continue
        pair = replace(found.chosen, basis=basis)
        rate, chips = pair.output_tokens_per_second, pair.decode.setting.cluster.chips
        texts.append(
            Text(
                f"{name}: TTFT {format_seconds(pair.ttft_seconds)}, "
                f"TPOT {format_seconds(pair.tpot_seconds)}, "
                f"{_rate(rate)} tokens/s, {_rate(rate / chips)} tokens/s per chip"
            )
        )
    return texts


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _total(found: Plan) -> list[Text]:
    """Latency and cost of a request, by the estimate where there is a profile and by the bound."""
    texts = []
    if found.decode.estimate is not None:
        pair = replace(found.chosen, basis="estimate")
        texts.append(
            Text(
                f"latency of one request, estimated: {format_range(pair.latency_seconds, _range(pair))}"
                f"{_moved(pair)}, {pair.chip_seconds_per_output_token * 1e3:.3g} chip-ms per output token"
            )
        )
    pair = replace(found.chosen, basis="bound")
    texts.append(
        Text(
            f"latency of one request, bound: {format_seconds(pair.latency_seconds)}{_moved(pair)}, "
            f"{pair.chip_seconds_per_output_token * 1e3:.3g} chip-ms per output token; "
            "communication added as in the paper, no run that waits for it can be faster"
        )
    )
    return texts


def _moved(pair: Pair) -> str:
    if not pair.reshard_seconds:
        return ""
    return f" ({format_seconds(pair.reshard_seconds)} of it to move keys and values between the layouts)"


def _range(pair: Pair) -> tuple[float, float]:
    """The range of an estimated latency: both phases at their low ends and both at their high ends, since
    the errors of one profile are alike."""
    low = high = pair.reshard_seconds
    for phase in (pair.prefill.estimate, pair.decode.estimate):
        assert phase is not None
        low, high = low + phase.total_interval[0], high + phase.total_interval[1]
    return low, high


def _space(found: Plan) -> list[Text]:
    """Which layouts were priced, where not all of them were."""
    space = found.space
    if not space or space["complete"]:
        return []
    axes = " and ".join(f"{count} in {phase}" for phase, count in space["axes"].items())
    return [Text(f"searched: layouts of at most {axes} of {space['all_axes']} possible mesh axes")]


def _server(advice: Advice) -> list[Text]:
    """What the plan sustains, where traffic, a rate or a price was given."""
    if advice.traffic is None and advice.rate is None and advice.price is None:
        return []
    figures = advice.server.as_json(advice.rate, advice.price)
    bound = advice.plan.ranked_by == "bound"
    text = (
        f"as a server, {'at most' if bound else 'an estimated'} {figures['requests_per_second']:.3g} "
        f"prompts/s and {figures['output_tokens_per_second']:,.0f} output tokens/s"
    )
    if advice.traffic is not None:
        text += f", over {advice.traffic.requests:,} request shape{'s' * (advice.traffic.requests > 1)}"
    if advice.rate is not None:
        text += f"; at {advice.rate:.3g} prompts/s it is {figures['utilisation']:.0%} busy"
        wait = advice.plan.chosen.fill_seconds(advice.rate)
        if wait:
            text += (
                f"; the first prompt of a prefill batch of {advice.plan.prefill.batch} waits "
                f"{format_seconds(wait)} for the last"
            )
    if advice.price is not None:
        price, when = (
            figures["price_per_million_output_tokens"],
            "" if advice.rate is None else " at that rate",
        )
        text += f"; {price:.4g} for a million output tokens{when}{', at least' if bound else ''}"
    return [Text(text), *_simulated(advice)]


def _simulated(advice: Advice) -> list[Text]:
    """Times that users see at the rate."""
    if advice.simulated is None:
        return []
    found = advice.simulated.percentiles()
    texts = []
    for name in ("ttft", "tpot", "e2e"):
        if (each := found[name]) is not None:
            said = ", ".join(format_seconds(each[part]) for part in ("p50", "p95", "p99"))
            texts.append(f"{'end to end' if name == 'e2e' else name.upper()} {said}")
    kind = "at least, by the bound" if advice.plan.ranked_by == "bound" else "estimated"
    return [Text(f"simulated at that rate, {kind} (50, 95, 99%): {'; '.join(texts)}")]


def _why(found: Plan) -> Table:
    why = plain_table("why")
    for reason in found.reasons:
        why.add_row(Text(reason))
    return why


def _runners_up(found: Plan) -> Table:
    """The pairs that come next, with their clusters where these differ."""
    right = ("batches", "latency", "chip-ms per output token", "loses by")
    first = f"runner-up by {found.ranked_by}: prefill"
    others = plain_table(first, "decode", "mesh", *right, right=right)
    pairs = (found.chosen, *found.runners_up)
    one = len({pair.decode.setting.cluster.name for pair in pairs}) == 1
    for pair, row in zip(found.runners_up, found.losses(), strict=True):
        mesh = f"{pair.decode.setting.mesh}"
        others.add_row(
            layout_text(pair.prefill.layout.roles),
            layout_text(pair.decode.layout.roles),
            Text(mesh if one else f"{mesh} on {row['cluster']}"),
            f"{row['prefill_batch']} / {row['batch']}",
            format_seconds(row["latency_seconds"]),
            f"{row['chip_seconds_per_output_token'] * 1e3:.3g}",
            f"{row['loses_by']:.1%}",
        )
    return others


def disaggregated(pools: DisaggregatedPlan, found: Plan) -> Group:
    """Both pools, and how they compare with the plan on shared chips."""
    times = ("time, estimated", "time, bound") if found.decode.estimate else ("time, bound",)
    more = ("prompts/s each", "limited by")
    table = plain_table("pool", "units", "chips each", "layout", "batch", *times, *more)
    for name, count, unit in (
        ("prefill", pools.prefill_units, pools.prefill),
        ("decode", pools.decode_units, pools.decode),
    ):
        prediction = unit.prediction
        prefill = name == "prefill"
        say = phase_text if prefill else step_text
        table.add_row(
            name,
            f"{count}",
            f"{unit.chips}",
            Text(f"{prediction.layout.roles}, mesh {prediction.setting.mesh}"),
            f"{prediction.batch}",
            *([say(prediction.estimate)] if len(times) == 2 else []),
            format_seconds(prediction.total_seconds if prefill else prediction.step_seconds),
            f"{unit.rate:.3g}",
            limit_text(prediction.bound.binds),
        )
    cost, shared = pools.chip_seconds_per_output_token, found.chosen.chip_seconds_per_output_token
    # pools are for cost at any batch; another plan is no measure of them
    alike = found.objective in ("cost", "throughput") and any(len(t.case.batches) > 1 for t in found.tables)
    beside = f"{abs(cost / shared - 1):.1%} {'less' if cost < shared else 'more'} than on shared chips"
    text = Text(
        f"disaggregated: {pools.chips} chips sustain {pools.prompts_per_second:.3g} prompts/s at "
        f"{cost * 1e3:.3g} chip-ms per output token by the {found.ranked_by}, "
        f"{beside if alike else 'chosen for cost at any batch'}; the keys and values of one prefill "
        f"({format_bytes(pools.transfer_bytes)}) cross in {format_seconds(pools.transfer_seconds)}"
    )
    return Group(table, text)
