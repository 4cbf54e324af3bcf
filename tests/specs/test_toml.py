"""Clusters as TOML: what `cluster_toml` writes, `parse_cluster` reads as the same cluster, but for digits."""

import tempfile
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.specs import Chip, Cluster, Constant, Format, PhysicalAxis, Profile, Region, parse_cluster
from partita.specs.catalogue import profile
from partita.specs.hardware import Kind
from partita.specs.profile import LeftOut
from partita.specs.toml import cluster_toml

FIGURE = st.floats(1e-3, 1e18)
SECONDS = st.floats(1e-9, 10.0)
NAME = st.text(max_size=12) | st.sampled_from(
    ['two "quoted"', "a\\b", "a\nb\t", "\x7f\x00", "é 芯片 🚀", "#=["]
)


def fitted(value: float) -> Constant:
    return Constant(value=value, low=value / 2, high=value * 2)


CONSTANT = st.floats(0.05, 1.0).map(fitted) | NAME.map(lambda why: Constant(value=0.5, fixed=why))
CONSTANTS = st.dictionaries(
    st.sampled_from(["matmul_share", "memory_share", "switch/share", "torus/all-to-all/share"]), CONSTANT
)
RANGE = st.tuples(SECONDS, SECONDS).map(sorted).map(tuple)
KINDS = st.lists(NAME, min_size=1, max_size=2).map(tuple)
REGION = st.builds(
    Region,
    parameters=RANGE,
    chips=RANGE,
    tokens=RANGE,
    context=RANGE,
    layouts=KINDS,
    weights=KINDS,
    activations=KINDS,
    chip_names=KINDS,
)
LEFT = st.builds(
    LeftOut, count=st.integers(1, 10**6), median=SECONDS, worst=SECONDS, inside=st.floats(0.0, 1.0)
)
PROFILE = st.builds(
    Profile,
    name=NAME,
    source=NAME,
    constants=CONSTANTS,
    compares=st.booleans(),
    probe_seconds=SECONDS | st.none(),
    region=st.dictionaries(st.sampled_from(["prefill", "decode"]), REGION),
    residuals=st.lists(st.floats(-1.0, 1.0), max_size=30).map(tuple),
    left_out=st.dictionaries(NAME, LEFT, max_size=2),
)
CHIP = st.builds(
    Chip,
    name=NAME,
    peak_flops=st.dictionaries(st.sampled_from(get_args(Format)), FIGURE, min_size=1),
    hbm_bytes=st.integers(1, 10**15),
    hbm_bandwidth=FIGURE,
    runtime_bytes=st.integers(0, 10**12),
    price_per_hour=FIGURE | st.none(),
)


@st.composite
def axes(draw: st.DrawFn) -> PhysicalAxis:
    kind = draw(st.sampled_from(get_args(Kind)))
    return PhysicalAxis(
        kind=kind,
        size=draw(st.integers(1, 10**6)),
        link_bandwidth=draw(FIGURE),
        links=draw(st.integers(1, 20)),
        latency=draw(SECONDS | st.just(0.0) | st.none()),
        wraparound=kind == "torus" and draw(st.booleans()),
        in_network_reduction=kind != "torus" and draw(st.booleans()),
    )


CLUSTER = st.builds(
    Cluster,
    name=NAME,
    chip=CHIP,
    fabric=st.lists(axes(), min_size=1, max_size=3).map(tuple),
    profile=PROFILE | st.none(),
)


def read(text: str) -> Cluster:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "read.toml"
        file.write_text(text, encoding="utf-8")
        return parse_cluster(str(file))


def alike(found: Any, meant: Any, where: str = "") -> None:
    """The same but for the digits that a file keeps: four of a residual after the point, and four of any
    other number of a profile."""
    if isinstance(meant, dict):
        assert found.keys() == meant.keys(), where
        for key in meant:
            alike(found[key], meant[key], f"{where}/{key}")
    elif isinstance(meant, tuple | list):
        assert len(found) == len(meant), where
        for i, (one, other) in enumerate(zip(found, meant, strict=True)):
            alike(one, other, f"{where}/{i}")
    elif isinstance(meant, float):
        exact = where.endswith(("latency", "price_per_hour"))
        rel = 0 if exact else 5.1e-4 if where.startswith("/profile") else 5.1e-6
        absolute = 5.1e-5 if "/residuals/" in where else 0
        assert found == pytest.approx(meant, rel=rel, abs=absolute), where
    else:
        assert found == meant, where


@given(CLUSTER)
def test_what_is_written_is_read(cluster: Cluster):
    text = cluster_toml(cluster)
    alike(read(text).model_dump(), cluster.model_dump())


@given(CLUSTER)
def test_writing_what_was_read_changes_nothing(cluster: Cluster):
    text = cluster_toml(cluster)
    assert cluster_toml(read(text)) == text


@pytest.mark.parametrize("name", ["tpu-v4:4x4x8", "h100:2x8", "a100-80g:2x8", "tpu-v5p:2x2x2"])
def test_clusters_of_the_catalogue_are_read_back(name: str):
    cluster = parse_cluster(name)
    assert read(cluster_toml(cluster)) == cluster


def test_what_is_as_by_default_is_not_written():
    chip = Chip(name="c", peak_flops={"f32": 1e12}, hbm_bytes=10**9, hbm_bandwidth=1e10)
    axis = PhysicalAxis(kind="switch", size=2, link_bandwidth=5e9)
    data = tomllib.loads(cluster_toml(Cluster(name="c", chip=chip, fabric=(axis,))))
    assert data == {
        "name": "c",
        "chip": {"name": "c", "peak_flops": {"f32": 1e12}, "hbm_bytes": 10**9, "hbm_bandwidth": 1e10},
        "fabric": [{"kind": "switch", "size": 2, "link_bandwidth": 5e9}],
    }


def test_the_profile_comes_with_it_and_the_probes_time():
    cluster = parse_cluster("tpu-v4:2x2x2")
    assert cluster.profile == profile("tpu-v4")
    probed = profile("tpu-v4").model_copy(update={"probe_seconds": 0.0012345})
    found = read(cluster_toml(cluster.model_copy(update={"profile": probed})))
    assert found.profile == probed.model_copy(update={"probe_seconds": 0.001234})
