"""How many chips there may be: the shapes of every family, and the texts that name them."""

from itertools import pairwise
from math import prod
from pathlib import Path

import pytest

from partita.errors import InputError
from partita.planner.chips import MOST_CHIPS, parse_clusters, shapes
from partita.specs import parse_cluster
from partita.specs.catalogue import cluster_families
from partita.specs.hardware import ClusterFamily

FAMILIES = {family.name: family for family in cluster_families()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("most", [1, 7, 64, 100, MOST_CHIPS])
def test_shapes_are_clusters_of_rising_chips_within_the_limit(family: ClusterFamily, most: int):
    found = shapes(family, most)
    clusters = [parse_cluster(f"{family.name}:{'x'.join(map(str, shape))}") for shape in found]
    chips = [cluster.chips for cluster in clusters]
    assert chips == [prod(shape) for shape in found]
    assert chips[0] == 1
    assert chips[-1] <= min(most, family.max_chips or most)
    assert all(a < b <= 2 * a for a, b in pairwise(chips))  # none is left out
    assert all(x <= y for a, b in pairwise(found) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_shapes_go_as_far_as_the_limit_or_the_family(family: ClusterFamily):
    """Doubling the last would be too many chips; a torus that is full has no more."""
    last = shapes(family, MOST_CHIPS)[-1]
    full = all(axis.max_size == size for axis, size in zip(family.fabric, last, strict=True))
    assert full or 2 * prod(last) > MOST_CHIPS


def test_a_torus_grows_its_shortest_axis():
    assert shapes(FAMILIES["tpu-v4"], 16) == [(1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 4)]
    assert shapes(FAMILIES["tpu-v5e"], MOST_CHIPS)[-2:] == [(8, 16), (16, 16)]


def test_other_fabrics_fill_a_node_before_there_is_another():
    assert shapes(FAMILIES["h100"], 32) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]


def test_a_full_domain_is_taken_even_where_it_is_no_power_of_two():
    found = shapes(FAMILIES["gb200"], 300)
    assert found[-4:] == [(1, 64), (1, 72), (2, 72), (4, 72)]


@pytest.mark.parametrize("text", ["h100:auto", " H100:AUTO ", "h100 :auto"])
def test_auto_names_every_shape_of_a_family(text: str):
    found = parse_clusters(text, 16)
    assert [cluster.name for cluster in found] == ["h100:1x1", "h100:1x2", "h100:1x4", "h100:1x8", "h100:2x8"]
    assert parse_clusters(text)[-1].chips == MOST_CHIPS


def test_a_family_has_its_other_names_too():
    assert [c.name for c in parse_clusters("b200-nvl72:auto", 2)] == ["gb200:1x1", "gb200:1x2"]


def test_a_shape_names_one_cluster():
    assert parse_clusters("h100:2x8", 16) == [parse_cluster("h100:2x8")]


@pytest.mark.parametrize(
    ("text", "most", "field", "said"),
    [
        ("h100:auto", 0, "max_chips", "1 or more are accepted"),
        ("h100:2x8", 0, "max_chips", "1 or more are accepted"),
        ("h100:2x8", 8, "max_chips", "h100:2x8 has 16; name a smaller one, or FAMILY:auto"),
        ("h101:auto", None, "cluster", "h100"),
        ("h100:automatic", None, "cluster", "whole numbers joined by x"),
        ("h100", None, "cluster", "has no shape"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(text: str, most: int | None, field: str, said: str):
    with pytest.raises(InputError) as caught:
        parse_clusters(text, most)
    assert caught.value.field == field
    assert caught.value.value == (text if field == "cluster" else most)
    assert said in caught.value.message


def test_a_file_is_no_family(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'chip = "tpu-v4"\n[[fabric]]\nkind = "switch"\nsize = 2\nlink_bandwidth = 1e9\n', encoding="utf-8"
    )
    assert parse_clusters(str(file))[0].chips == 2
    with pytest.raises(InputError, match="names no family of the catalogue"):
        parse_clusters(f"{file}:auto")
