"""A cluster as TOML, in the form that `parse_cluster` reads. Knows nothing about where its figures are
from."""

from __future__ import annotations

from collections.abc import Iterator

from partita.specs.chip import Chip
from partita.specs.cluster import Cluster
from partita.specs.fabric import PhysicalAxis
from partita.specs.profile_text import profile_toml, toml_string


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
    """As TOML takes a float: with a point or an exponent."""
    text = f"{value:.6g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"
