"""Predictions as tables for people, bound beside estimate. Knows nothing about how the numbers were made."""

from __future__ import annotations

import re

from rich.table import Table
from rich.text import Text

from partita.cost.prediction import Prediction
from partita.report import expected
from partita.sharding.roles import Roles
from partita.specs.units import format_bytes, format_count, format_seconds


def columns(*names: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table with these headings; those in `right` are set to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def layout_text(roles: Roles, width: int = 40) -> Text:
    """A layout's roles, broken where they are wider: after the slash, and after commas."""
    text = str(roles)
    if len(text) <= width:
        return Text(text)
    lines = []
    for part in re.findall(r"[^/]+/?", text):
        lines.append("")
        for piece in re.findall(r"[^,]+,?", part):
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
            lines[-1] += piece
    return Text("\n".join(lines))


def binding_text(binds: str) -> str:
    """What binds a step, in words: "link:yz" is "links of y, z"."""
    named = {"kv": "KV cache"}
    return named.get(binds) or (f"links of {', '.join(binds[5:])}" if binds.startswith("link:") else binds)


def attention_split(prediction: Prediction) -> str:
    """What attention splits over which axes, once the batch is known: "batch over xyz"."""
    layout = prediction.layout
    parts = {
        "batch": layout.attn_b,
        "context": layout.attn_s,
        "query tokens": "".join(a for a in layout.attn_l if a not in layout.attn_s),
        "KV heads": layout.attn_k,
        "query heads": layout.attn_g,
    }
    size = prediction.setting.mesh.size
    named = {what: "".join(a for a in axes if size[a] > 1) for what, axes in parts.items()}
    return ", ".join(f"{what} over {axes}" for what, axes in named.items() if axes) or "nothing"


def predictions(found: list[Prediction]) -> Table:
    """Side by side, a column a phase; all on one cluster, so that all have an estimate or none has."""
    table = columns("", *(p.phase for p in found))
    rows = [
        ("layout", [str(p.layout.roles) for p in found]),
        ("attention splits", [attention_split(p) for p in found]),
        ("batch", [str(p.batch) for p in found]),
        ("tokens a step", [f"{p.tokens_per_step:,}" for p in found]),
        ("stages", [_stages(p) for p in found]),
        ("prompt", [_portions(p) for p in found]),
        *_estimated(found),
        ("step, bound", [format_seconds(p.step_seconds) for p in found]),
        ("  compute", [format_seconds(float(p.bound.compute_seconds)) for p in found]),
        ("  memory", [format_seconds(float(p.bound.memory_seconds)) for p in found]),
        ("  communication", [format_seconds(float(p.bound.communication_seconds)) for p in found]),
        ("  waiting for other stages", [_wait(p) for p in found]),
        ("phase, bound", [format_seconds(p.total_seconds) for p in found]),
        ("binds", [binding_text(p.bound.binds) for p in found]),
        *_merit(found),
        ("memory per chip", [_memory(p) for p in found]),
        ("longest context", [format_count(p.max_context) for p in found]),
        ("largest batch", [format_count(p.max_batch) for p in found]),
    ]
    for name, cells in rows:
        if any(cells):
            table.add_row(name, *map(Text, cells))
    if found[0].padding:
        padded = ", ".join(f"{k} {v['from']} -> {v['to']}" for k, v in found[0].padding.items())
        more = format_count(found[0].padded_parameters)
        table.add_row("padding", Text(f"{padded}: {more} parameters more"))
    return table


def _estimated(found: list[Prediction]) -> list[tuple[str, list[str]]]:
    """The rows of the estimate, empty where there is none; parts that take no time are empty too."""
    parts = [expected.parts(p) for p in found]
    names = dict.fromkeys(name for each in parts for name in each)
    return [
        ("step, estimated", [expected.step_text(p.estimate) for p in found]),
        *((f"  {n}", [format_seconds(each[n]) if each[n] else "" for each in parts]) for n in names),
        ("phase, estimated", [expected.phase_text(p.estimate) for p in found]),
    ]


def _merit(found: list[Prediction]) -> list[tuple[str, list[str]]]:
    """MFU and cost: as estimated, with what the bound allows beside it; or that alone."""
    most = [f"{p.bound_mfu:.1%}" for p in found]
    least = [f"{p.bound_chip_seconds_per_token * 1e3:.3g}" for p in found]
    if found[0].estimate is None:
        return [("MFU (2N a token), at most", most), ("chip-ms per token, at least", least)]
    pairs = list(zip(found, most, least, strict=True))
    return [
        ("MFU (2N a token), estimated", [f"{p.mfu:.1%} (at most {most})" for p, most, _ in pairs]),
        (
            "chip-ms per token, estimated",
            [f"{p.chip_seconds_per_token * 1e3:.3g} (at least {least})" for p, _, least in pairs],
        ),
    ]


def _memory(prediction: Prediction) -> str:
    memory = prediction.memory_bytes
    names = ("weights", "kv", "activations", *(["runtime"] if memory["runtime"] else []))
    parts = ", ".join(f"{part} {format_bytes(memory[part])}" for part in names)
    return f"{format_bytes(memory['total'])} of {format_bytes(memory['capacity'])}: {parts}"


def _stages(prediction: Prediction) -> str:
    """Layers of each stage and what passes them: "35, 35 and 35 layers, 3 microbatches of 2"."""
    setting = prediction.setting
    if setting.stages == 1:
        return ""
    *first, last = (f"{part.layers}" for part in setting.parts)
    count, size = prediction.run.microbatches
    return f"{', '.join(first)} and {last} layers, {count} microbatches of {size}"


def _wait(prediction: Prediction) -> str:
    return format_seconds(prediction.idle_seconds) if prediction.setting.stages > 1 else ""


def _portions(prediction: Prediction) -> str:
    """What of a prompt is cached and in how many steps the rest is read; empty where it is read at once."""
    workload = prediction.setting.workload
    if prediction.phase != "prefill" or (not workload.prefix and prediction.steps == 1):
        return ""
    cached = f"{workload.prefix:,} of {workload.prompt:,} tokens cached, " if workload.prefix else ""
    steps = f"in {prediction.steps:,} steps" if prediction.steps > 1 else "in 1 step"
    return f"{cached}{workload.new_tokens:,} read {steps}"
