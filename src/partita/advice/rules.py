"""Every rule that a layout breaks or bends, all at once, each priced and with its nearest alternative.

Hard rules stop a run: the memory of a chip. Soft ones are paid for: layers that do not divide leave stages
idle; sequences, query tokens and KV heads that are too few for the axes over them leave chips idle or keep
copies; dims that do not divide are padded (`rules_weights.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.advice.rule import Rule, either, nearest_divisors, nothing_saved, saved, saved_of_each
from partita.advice.rules_weights import weight_rules
from partita.cost.ledger import Entry
from partita.cost.prediction import Prediction, Setting, predict
from partita.planner.infeasible import memory_text
from partita.planner.pair import Basis, step_seconds
from partita.sharding.padding import product
from partita.sharding.roles import AttentionRole, Roles, name_roles
from partita.sharding.spec import parse
from partita.specs.units import format_seconds


def broken_rules(prediction: Prediction, basis: Basis = "bound") -> list[Rule]:
    """The rules one phase's layout breaks, hard ones first; empty where everything divides and fits.

    basis: the time that they cost is by this. Errors as those of `pair.step_seconds`.
    """
    return [
        *_memory(prediction),
        *weight_rules(prediction, basis),
        *_stages(prediction, basis),
        *token_rules(prediction, basis),
    ]


def _memory(prediction: Prediction) -> Iterator[Rule]:
    memory = prediction.memory_bytes
    total, capacity = memory["total"], memory["capacity"]
    if total <= capacity:
        return
    yield Rule(
        name="memory",
        hard=True,
        message=f"memory: {memory_text(memory)} per chip",
        alternative=_what_fits(prediction),
        size=capacity,
        needed=total,
        bytes_per_chip=float(total - capacity),
    )


def _what_fits(prediction: Prediction) -> str:
    """The largest batch or longest context of this layout, else the chips its weights alone would take."""
    found = []
    if prediction.max_batch:
        found.append(f"a batch of {prediction.max_batch:,}")
    if prediction.max_context:
        word = "prompts" if prediction.phase == "prefill" else "a context"
        found.append(f"{word} of {prediction.max_context:,} tokens")
    if found:
        return f"{' or '.join(found)} would fit"
    memory, chips = prediction.memory_bytes, prediction.setting.cluster.chips
    room = memory["capacity"] - memory.get("runtime", 0)
    if memory["weights"] <= room:
        return "no batch and no context fits beside the weights; more chips or int8 weights leave room"
    least = -(-chips * memory["weights"] // room)
    return f"the weights alone, split like this, take {least:,} chips or more"


def _stages(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """The longest stage decides; the price of an even split lies between those with fewer and more layers."""
    setting = prediction.setting
    stages, layers = setting.stages, setting.model.layers
    fewest, extra = divmod(layers, stages)
    if not extra:
        return
    longest = fewest + 1
    bytes_saved, seconds_saved = 0.0, nothing_saved(basis)
    if fewest:
        even = replace(setting, model=setting.model.model_copy(update={"layers": fewest * stages}))
        shorter = prediction.priced_in(even)
        idle = 1 - extra / stages  # of a layer, on average over the stages
        bytes_saved = idle * (prediction.memory_bytes["total"] - shorter.memory_bytes["total"])
        seconds_saved = saved(prediction, shorter, basis, idle)
    yield Rule(
        name="stages",
        hard=False,
        message=f"stages: {layers} layers in {stages} stages: the longest has {longest}, "
        f"an even one {layers / stages:.2f}",
        alternative=f"{either(nearest_divisors(layers, stages))} stages divide {layers} layers",
        size=layers,
        needed=longest * stages,
        bytes_per_chip=bytes_saved,
        **seconds_saved,
    )


def token_rules(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """Copies of the cache, axes with too little to split, and numbers that a split does not divide."""
    yield from _copies(prediction, basis)
    yield from _too_few(prediction)
    yield from _idle(prediction, basis)
    if prediction.setting.stages == 1:
        yield from _uneven(prediction, basis)


def _wide(prediction: Prediction, axes: str | list[str]) -> str:
    """Those of `axes` that have more than one chip, in the mesh's order."""
    return "".join(a for a, size in prediction.setting.mesh.size.items() if a in axes and size > 1)


def _cache_axes(prediction: Prediction) -> str:
    """The axes that keys and values, or their compressed form, are split over."""
    latent, layout = prediction.setting.model.latent, prediction.layout
    return "".join(parse(layout.cache if latent is None else layout.latent_cache).axes)


def _copies(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """Chips that hold the same keys and values, because attention splits neither sequences nor KV heads."""
    setting, layout = prediction.setting, prediction.layout
    split = _cache_axes(prediction)
    axes = _wide(prediction, "".join(a for a in setting.mesh.axes if a not in split))
    times = product(setting.mesh.size, axes)
    if times == 1:
        return
    heads = setting.model.kv_heads if setting.model.latent is None else 1
    ways = product(setting.mesh.size, layout.attn_k + layout.attn_g)
    yield Rule(
        name="kv_replicas",
        hard=False,
        message=f"kv_replicas: {heads} KV head{'s' * (heads > 1)} on {setting.mesh.chips} chips"
        f"{f', heads split {ways} ways' * (ways > 1)}: "
        f"keys and values are kept {times} times over axes {axes}",
        alternative=_without_copies(prediction, axes, basis),
        size=heads,
        needed=heads * times,
        bytes_per_chip=prediction.memory_bytes["kv"] * (1 - 1 / times),
        **saved_of_each(prediction, basis, lambda entry: replace(entry, kv_bytes=entry.kv_bytes / times)),
    )


def _without_copies(prediction: Prediction, axes: str, basis: Basis) -> str:
    """The same layout with attention over the batch, or over the context, on the axes that hold copies."""
    roles, setting = prediction.layout.roles, prediction.setting
    roles_without: tuple[AttentionRole, ...] = ("batch", "context")
    for role in roles_without:
        other = _attend(roles, axes, role)
        found = predict(setting, prediction.phase, other)
        split = _cache_axes(found)
        if all(axis in split for axis in axes):
            seconds = step_seconds(found, basis)
            change = seconds / step_seconds(prediction, basis) - 1
            return (
                f"attention over {role} on axes {axes} keeps them once: a step of "
                f"{format_seconds(seconds)}, {abs(change):.1%} {'more' if change > 0 else 'less'}"
            )
    least = product(setting.mesh.size, axes)
    return f"a batch of {least} or more can be split over axes {axes} instead"


def _attend(roles: Roles, axes: str, role: AttentionRole) -> Roles:
    return name_roles(roles.weights, tuple((a, role if a in axes else was) for a, was in roles.attends))


def _too_few(prediction: Prediction) -> Iterator[Rule]:
    """Axes that attention should split sequences over, but there are fewer than chips."""
    layout, sizes = prediction.layout, prediction.setting.mesh.size
    asked = _wide(prediction, [a for a, role in layout.roles.attends if role == "batch"])
    missing = "".join(a for a in asked if a not in layout.attn_b)
    if not missing:
        return
    falls_to = {"heads": layout.attn_k + layout.attn_g, "query tokens": layout.attn_l}
    found = [f"{what} over {axes}" for what, over in falls_to.items() if (axes := _both(missing, over))]
    least, have = product(sizes, asked), prediction.batch
    yield Rule(
        name="batch",
        hard=False,
        message=f"batch: attention over batch on axes {asked} needs {least:,} sequences, there are {have:,}: "
        f"it splits {', '.join(found) or f'nothing over {missing}'} instead",
        alternative=f"give {least:,} sequences or more, or attention over heads on axes {missing}",
        size=have,
        needed=least,
    )


def _both(first: str, second: str) -> str:
    return "".join(axis for axis in first if axis in second)


def _idle(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """Axes whose chips gather or repeat weights to split tokens, and there are too few tokens to split."""
    layout, sizes = prediction.layout, prediction.setting.mesh.size
    asked = _wide(prediction, [a for a, role in layout.roles.weights if role not in ("e", "f")])
    idle = "".join(a for a in asked if a not in layout.tokens_b + layout.tokens_l)
    if not idle:
        return
    times = product(sizes, idle)

    def shared(entry: Entry) -> Entry:
        return replace(entry, flops=entry.flops / times, needed_flops=entry.needed_flops / times)

    yield Rule(
        name="tokens",
        hard=False,
        message=f"tokens: {prediction.tokens_per_step:,} a step are too few to split over axes {asked}: the "
        f"chips of {idle} do the same work {times} times",
        alternative=f"give {product(sizes, asked):,} tokens a step or more, or keep {idle} weight-stationary",
        size=prediction.tokens_per_step,
        needed=product(sizes, asked),
        **saved_of_each(prediction, basis, shared),
    )


def _uneven(prediction: Prediction, basis: Basis) -> Iterator[Rule]:
    """Sequences or tokens that do not divide: the step takes what the next multiple would."""
    layout, setting = prediction.layout, prediction.setting
    sizes, workload = setting.mesh.size, setting.workload
    cases = [("batch", prediction.batch, product(sizes, layout.batch_axes))]
    whole_prompt = not workload.prefix and workload.chunk is None
    if prediction.phase == "prefill" and whole_prompt:
        cases.append(("prompt", workload.prompt, product(sizes, layout.query_axes)))
    if prediction.phase == "decode":
        cases.append(("context", workload.context, product(sizes, layout.attn_s)))
    for field, have, ways in cases:
        if have % ways == 0:
            continue
        below, above = have // ways * ways, -(-have // ways) * ways
        bytes_saved, seconds_saved = 0.0, nothing_saved(basis)
        if below:
            fewer = prediction.priced_in(_sized(setting, prediction, field, below))
            bytes_saved = max(0.0, float(prediction.memory_bytes["total"] - fewer.memory_bytes["total"]))
            seconds_saved = saved(prediction, fewer, basis)
        items = {"batch": "sequences", "prompt": "prompt tokens", "context": "cached tokens"}[field]
        yield Rule(
            name=f"{field}_padded",
            hard=False,
            message=f"{field}_padded: {have:,} {items} over {ways} chips take the step of {above:,}",
            alternative=f"{either([n for n in (below, above) if n])} {items} fill every chip",
            size=have,
            needed=above,
            bytes_per_chip=bytes_saved,
            **seconds_saved,
        )


def _sized(setting: Setting, prediction: Prediction, field: str, number: int) -> Setting:
    """The setting with another batch of this phase, another prompt or another context."""
    if field == "batch" and prediction.phase == "prefill":
        field = "prefill_batch"
    return replace(setting, workload=setting.workload.resized(**{field: number}))
