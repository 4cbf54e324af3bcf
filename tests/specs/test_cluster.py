"""Clusters: names with shapes, TOML files, bandwidths, and what is refused."""

import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from partita.errors import InputError
from partita.specs import PhysicalAxis, catalogue, cluster, parse_cluster
from partita.specs.hardware import ClusterFamily, FamilyAxis

EXAMPLE = textwrap.dedent(
    (cluster.__doc__ or "").split("bytes per second and seconds):\n")[1].split("\nWhere")[0]
)


def test_a_catalogue_name_with_a_shape():
    found = parse_cluster("tpu-v4:4x4x8")
    assert (found.name, found.shape, found.chips) == ("tpu-v4:4x4x8", (4, 4, 8), 128)
    assert found.chip.name == "tpu-v4"


@pytest.mark.parametrize("shape", ["4x4x4", "1x1x1", "8x1x2", "16x16x16"])
def test_a_torus_axis_counts_all_torus_links_of_a_chip(shape: str):
    """Pope et al. 2022 divide by 270 GB/s per TPU v4 chip, whatever the slice."""
    found = parse_cluster(f"tpu-v4:{shape}")
    assert [found.bandwidth_bytes_per_second(i) for i in range(3)] == [270e9] * 3


def test_only_axes_of_a_multiple_of_four_wrap_around():
    assert [axis.wraparound for axis in parse_cluster("tpu-v4:1x4x6").fabric] == [False, True, False]


@given(st.lists(st.integers(1, 16), min_size=3, max_size=3))
def test_a_name_is_read_back_as_itself(shape: list[int]):
    name = "tpu-v4:" + "x".join(map(str, shape))
    found = parse_cluster(name)
    assert found.name == name
    assert found.shape == tuple(shape)
    assert parse_cluster(f" {name.upper()} ") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown; accepted: tpu-v4:AxBxC"),
        (
            "tpuv4:4x4x4",
            r"unknown; did you mean tpu-v4\? accepted: tpu-v4:AxBxC.*, or a path to a .toml file",
        ),
        ("h10:1x8", r"unknown; did you mean h100\? accepted: .*h100:AxB"),
        ("abacus", "unknown; accepted: tpu-v4:AxBxC, .*cpu:AxB, or a path to"),
        ("h100:8", "needs 2 sizes, not 1; accepted: h100:AxB, such as h100:2x8"),
        ("h100:1x16", r"size 2 \(switch\) must be at most 8, not 16"),
        ("gb200:1x73", r"size 2 \(switch\) must be at most 72, not 73"),
        ("tpu-v5e:4x32", r"size 2 \(torus\) must be at most 16, not 32"),
        ("tpu-v4", "has no shape; accepted: tpu-v4:AxBxC, such as tpu-v4:4x4x4"),
        ("tpu-v4:", "has no shape"),
        ("tpu-v4:4x4", "needs 3 sizes, not 2; accepted: tpu-v4:AxBxC"),
        ("tpu-v4:4x4x4x4", "needs 3 sizes, not 4"),
        ("tpu-v4:0x4x4", "every size must be at least 1"),
        ("tpu-v4:-4x4x4", "whole numbers joined by x"),
        ("tpu-v4:4x4x4.5", "whole numbers joined by x"),
        ("tpu-v4:axbxc", "whole numbers joined by x"),
        ("tpu-v4:4xx4", "whole numbers joined by x"),
        ("tpu-v4:٤x٤x٤", "whole numbers joined by x"),
        ("tpu-v4:" + "9" * 5000, "whole numbers joined by x"),
        ("tpu-v4:16x16x17", "4,352 chips; tpu-v4 goes up to 4,096"),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(text: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        parse_cluster(text)
    assert (caught.value.field, caught.value.value) == ("cluster", text)
    assert "\n" not in caught.value.message


@given(st.text() | st.from_regex(r"tpu-v4:[0-9x]*", fullmatch=True))
def test_any_text_is_read_or_refused_in_words(text: str):
    with suppress(InputError):
        assert parse_cluster(text).chips >= 1


def _file(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_the_documented_example_is_complete(tmp_path: Path):
    found = parse_cluster(_file(tmp_path, EXAMPLE))
    assert (found.name, found.shape, found.chips) == ("two-nodes", (2, 8), 16)
    assert [axis.kind for axis in found.fabric] == ["network", "switch"]
    assert [found.bandwidth_bytes_per_second(i) for i in range(2)] == [25e9, 300e9]
    assert found.chip.peak("f32") == 19.5e12
    assert found.fabric[0].latency == 5e-6
    assert (found.chip.runtime_bytes, found.chip.price_per_hour) == (1_800_000_000, 2.5)


def test_a_file_may_take_a_chip_of_the_catalogue_and_its_own_name(tmp_path: Path):
    text = 'chip = "tpu-v4"\n[[fabric]]\nkind = "torus"\nsize = 4\nlinks = 2\nlink_bandwidth = 45e9\n'
    found = parse_cluster(_file(tmp_path, text))
    assert (found.name, found.chip) == ("mine", parse_cluster("tpu-v4:1x1x1").chip)
    assert found.bandwidth_bytes_per_second(0) == 90e9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("size = 8", "size = ", "is not valid TOML: .*line "),
        ("size = 8", "size = 0", r"fabric\[1\].size = 0: should be greater than or equal to 1"),
        ("size = 8", 'size = "8"', r"fabric\[1\].size = '8': should be a valid integer"),
        ("size = 8", "size = true", r"fabric\[1\].size = True: should be a valid integer"),
        ("size = 8", "", r"fabric\[1\].size is missing"),
        ("size = 8", "size = 8\nsise = 8", r"fabric\[1\].sise is not a known field"),
        ("size = 8", "size = 8\nwraparound = true", r"fabric\[1\]: wraparound is for a torus axis"),
        ('kind = "switch"', 'kind = "wire"', r"fabric\[1\].kind = 'wire': should be 'torus', 'switch' or"),
        ("runtime_bytes = 1_800_000_000", "runtime_bytes = -1", "chip.runtime_bytes = -1: should be greater"),
        ("runtime_bytes = 1_800_000_000", "runtime_bytes = 1.5", "chip.runtime_bytes = 1.5: .* integer"),
        ("price_per_hour = 2.5", 'price_per_hour = "2.5"', "chip.price_per_hour = '2.5': .* number"),
        (
            "price_per_hour = 2.5",
            "price_per_hour = 0.0",
            "chip.price_per_hour = 0.0: should be greater than 0",
        ),
        (
            "in_network_reduction = false",
            'in_network_reduction = "on off"',
            r"fabric\[1\].in_network_reduction = 'on off': should be a valid boolean",
        ),
        ("hbm_bandwidth = 2.039e12", "hbm_bandwidth = inf", "chip.hbm_bandwidth = inf: should be a finite"),
        ("hbm_bandwidth = 2.039e12", "hbm_bandwidth = -1.0", "chip.hbm_bandwidth = -1.0: should be greater"),
        ("bf16 = 312e12", "fp8 = 312e12", "chip.peak_flops.fp8.* should be 'f32', 'bf16' or 'int8'"),
        ("peak_flops = {", "peak_flops = {} # {", "chip.peak_flops: .*at least 1 item"),
        ("[chip]", "[chop]", "chip is missing; chop is not a known field"),
    ],
)
def test_a_broken_file_is_named_with_the_line_or_field(tmp_path: Path, old: str, new: str, message: str):
    assert old in EXAMPLE
    path = _file(tmp_path, EXAMPLE.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        parse_cluster(path)
    assert (caught.value.field, caught.value.value) == ("cluster", path)
    assert "\n" not in caught.value.message


def test_a_file_with_an_unknown_chip_names_it(tmp_path: Path):
    with pytest.raises(InputError, match=r"mine.toml: chip: mi300: unknown; did you mean mi300x\?"):
        parse_cluster(_file(tmp_path, 'chip = "mi300"\n'))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"absent.toml: cannot be read: No such file"):
        parse_cluster(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        parse_cluster(str(tmp_path / "folder.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        parse_cluster(str(tmp_path / "bytes.toml"))


GPUS = ClusterFamily(
    name="gpu",
    chip="tpu-v4",
    example=(2, 8),
    fabric=(
        FamilyAxis(kind="network", link_bandwidth=50e9),
        FamilyAxis(kind="switch", link_bandwidth=25e9, links=18, max_size=8),
    ),
)


def test_a_family_of_switched_nodes_has_shapes_up_to_its_node():
    assert (GPUS.pattern, GPUS.example_name) == ("gpu:AxB", "gpu:2x8")
    network, switch = GPUS.shaped((4, 8))
    assert (network.size, network.bandwidth) == (4, 50e9)
    assert (switch.size, switch.bandwidth, switch.wraparound) == (8, 450e9, False)
    with pytest.raises(ValueError, match=r"size 2 \(switch\) must be at most 8, not 16"):
        GPUS.shaped((1, 16))


def test_only_a_torus_wraps_around():
    with pytest.raises(ValidationError, match="not for a switch axis"):
        PhysicalAxis(kind="switch", size=8, link_bandwidth=1.0, wraparound=True)


def test_only_switches_and_networks_sum():
    assert PhysicalAxis(kind="network", size=2, link_bandwidth=1.0, in_network_reduction=True)
    with pytest.raises(ValidationError, match="not for a torus axis"):
        PhysicalAxis(kind="torus", size=8, link_bandwidth=1.0, in_network_reduction=True)


@pytest.mark.parametrize(
    ("name", "chips", "gigabytes_per_second"),
    [
        ("h100:1x8", 8, [50, 450]),
        ("h100:8x8", 64, [50, 450]),
        ("h200:2x4", 8, [50, 450]),
        ("a100-80g:3x8", 24, [25, 300]),
        ("a100-40g:2x8", 16, [25, 300]),
        ("b200:1x8", 8, [50, 900]),
        ("gb200:1x72", 72, [50, 900]),
        ("mi300x:1x8", 8, [50, 448]),
        ("l40s:1x4", 4, [25, 32]),
        ("cpu:1x2", 2, [6.25, 192]),
        ("tpu-v5e:4x4", 16, [180, 180]),
        ("tpu-v5p:4x4x8", 128, [540, 540, 540]),
        ("tpu-v6e:16x16", 256, [360, 360]),
        ("tpu-v7:4x4x4", 64, [540, 540, 540]),
    ],
)
def test_clusters_of_the_catalogue(name: str, chips: int, gigabytes_per_second: list[float]):
    found = parse_cluster(name)
    assert (found.name, found.chips) == (name, chips)
    speeds = [found.bandwidth_bytes_per_second(i) / 1e9 for i in range(len(found.fabric))]
    assert speeds == pytest.approx(gigabytes_per_second)


@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("tpu-v5e:8x16", [False, True]),
        ("tpu-v5e:4x8", [False, False]),
        ("tpu-v6e:16x16", [True, True]),
        ("tpu-v5p:4x8x12", [True, True, True]),
        ("tpu-v7:2x4x4", [False, True, True]),
        ("h100:2x8", [False, False]),
    ],
)
def test_what_wraps_around(name: str, wraps: list[bool]):
    """v5e and v6e close only a full axis of 16, the three-dimensional ones a multiple of 4."""
    assert [axis.wraparound for axis in parse_cluster(name).fabric] == wraps


def test_switches_that_sum_are_those_of_hopper_and_later():
    summing = {
        family.name
        for family in catalogue.cluster_families()
        if any(axis.in_network_reduction for axis in family.shaped(family.example))
    }
    assert summing == {"h100", "h200", "b200", "gb200"}


def test_another_name_of_a_family_is_read_as_the_first():
    assert parse_cluster("b200-nvl72:1x72") == parse_cluster("gb200:1x72")
    assert parse_cluster("Ironwood:4x4x4").name == "tpu-v7:4x4x4"
