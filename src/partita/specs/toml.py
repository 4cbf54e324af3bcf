"""Clusters and profiles as TOML, in the forms that `parse_cluster` and the catalogue read."""

from __future__ import annotations

import json
from collections.abc import Iterator

from partita.specs.cluster import Cluster
from partita.specs.hardware import Chip, PhysicalAxis
from partita.specs.profile import Constant, Profile


def cluster_toml(cluster: Cluster) -> str:
    """Name, chip, fabric and profile; figures keep six digits, those of the profile four."""
    lines = [f"name = {toml_string(cluster.name)}", "", "[chip]", *_chip(cluster.chip)]
    for axis in cluster.fabric:
        lines += ["", "[[fabric]]", *_axis(axis)]
    text = "\n".join(lines) + "\n"
    return text if cluster.profile is None else f"{text}\n{profile_toml(cluster.profile, 'profile')}"


def _chip(chip: Chip) -> Iterator[str]:
    yield f"name = {toml_string(chip.name)}"
    peaks = ", ".join(f"{format} = {_figure(flops)}" for format, flops in chip.peak_flops.items())
    yield f"peak_flops = {{ {peaks} }}"
    yield f"hbm_bytes = {chip.hbm_bytes}"
    yield f"hbm_bandwidth = {_figure(chip.hbm_bandwidth)}"
    if chip.runtime_bytes:
        yield f"runtime_bytes = {chip.runtime_bytes}"
    if chip.price_per_hour is not None:
        yield f"price_per_hour = {chip.price_per_hour!r}"


def _axis(axis: PhysicalAxis) -> Iterator[str]:
    yield f"kind = {toml_string(axis.kind)}"
    yield f"size = {axis.size}"
    yield f"link_bandwidth = {_figure(axis.link_bandwidth)}"
    if axis.links != 1:
        yield f"links = {axis.links}"
    if axis.latency is not None:
        yield f"latency = {axis.latency!r}"
    for flag in ("wraparound", "in_network_reduction"):
        if getattr(axis, flag):
            yield f"{flag} = true"


def _figure(value: float) -> str:
    """A float as TOML takes it: with a point or an exponent."""
    text = f"{value:.6g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def profile_toml(profile: Profile, table: str = "", *, named: bool = True) -> str:
    """The fields of a profile; `table` is the table they are in, such as "profile"; empty for a whole file.

    Numbers keep four digits. `named` False leaves out the name: a file of the catalogue has its own.
    """
    return "\n".join(_lines(profile, table, named)) + "\n"


def toml_string(text: str) -> str:
    """A TOML string of one line. JSON's is one but for a control character and for surrogates in pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(profile: Profile, table: str, named: bool) -> Iterator[str]:
    if table:
        yield f"[{table}]"
    if named:
        yield f"name = {toml_string(profile.name)}"
    yield f"source = {toml_string(profile.source)}"
    if profile.clusters:
        yield f"clusters = [{', '.join(map(toml_string, profile.clusters))}]"
    if profile.microbatch_tokens is not None:
        yield f"microbatch_tokens = {profile.microbatch_tokens}"
    if profile.reduce is not None:
        yield f"reduce = {toml_string(profile.reduce)}"
    if profile.compares:
        yield "compares = true"
    if profile.probe_seconds is not None:
        yield f"probe_seconds = {profile.probe_seconds:.4g}"
    if profile.residuals:
        yield "residuals = ["
        for start in range(0, len(profile.residuals), 12):
            yield "  " + " ".join(f"{residual:.4f}," for residual in profile.residuals[start : start + 12])
        yield "]"
    if profile.held_out is not None:
        yield f"held_out = {profile.held_out}"
    if profile.coverage:
        yield f"coverage = [{', '.join(f'{share:.4g}' for share in profile.coverage)}]"
    prefix = f"{table}." if table else ""
    if profile.left_out:
        yield f"\n[{prefix}left_out]"
    for name, left in profile.left_out.items():
        errors = (f"{key} = {value:.4g}" for key, value in left.model_dump(exclude={"count"}).items())
        yield f"{toml_string(name)} = {{ {', '.join((f'count = {left.count}', *errors))} }}"
    yield f"\n[{prefix}constants]"
    for name, constant in profile.constants.items():
        yield f"{toml_string(name)} = {{ {_constant(constant)} }}"
    for phase, region in profile.region.items():
        yield f"\n[{prefix}region.{phase}]"
        for name, value in region.model_dump().items():
            numbers = all(isinstance(each, float | int) for each in value)
            texts = (f"{each:.15g}" if numbers else toml_string(each) for each in value)
            yield f"{name} = [{', '.join(texts)}]"


def _constant(constant: Constant) -> str:
    if constant.fixed is not None:
        return f"value = {constant.value:.4g}, fixed = {toml_string(constant.fixed)}"
    return f"value = {constant.value:.4g}, low = {constant.low:.4g}, high = {constant.high:.4g}"
