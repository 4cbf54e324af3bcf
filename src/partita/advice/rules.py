"""Every rule that a layout breaks or bends, all at once, each priced and with its nearest alternative.

Hard rules stop a run: the memory of a chip, the chips of a cluster. Soft ones are paid for: dims that do not
divide are padded, KV heads that are too few are kept many times, layers that do not divide leave stages idle.
Knows nothing about choosing between layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.advice.rule import Rule, either, nearest_divisors, nothing_saved, saved
from partita.advice.rules_tokens import token_rules
from partita.advice.rules_weights import weight_rules
from partita.cost.prediction import Prediction
from partita.planner.basis import Basis
from partita.planner.misfit import memory_text


def broken_rules(prediction: Prediction, basis: Basis = "bound") -> list[Rule]:
    """The rules one phase's layout breaks, hard ones first; empty where everything divides and fits.

    by: the time that they cost. Errors as those of `basis.step_seconds`.
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
