"""The logical mesh: written, read, and what is no mesh."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.sharding import Mesh, parse_mesh
from partita.sharding.mesh import AXES


@given(st.dictionaries(st.sampled_from(AXES), st.integers(1, 4096), min_size=1))
def test_a_mesh_reads_what_it_writes(size: dict[str, int]):
    mesh = Mesh("".join(size), tuple(size.values()))
    assert parse_mesh(str(mesh)) == mesh
    assert mesh.size == size


def test_spaces_are_allowed_and_order_is_kept():
    mesh = parse_mesh(" z=2, x=3 ,y=1")
    assert (mesh.axes, mesh.sizes, mesh.chips) == ("zxy", (2, 3, 1), 6)
    assert mesh != parse_mesh("x=3,y=1,z=2")


def test_a_shape_takes_the_usual_names():
    assert Mesh.of((4, 4, 2)) == parse_mesh("x=4,y=4,z=2")
    assert Mesh.of((2,) * 5).axes == "xyzwu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not an axis; accepted are name=size pairs such as x=4,y=4,z=4"),
        ("4x4x4", "'4x4x4' is not an axis; accepted are"),
        ("x=4,y", "'y' is not an axis; accepted are"),
        ("x=4,,y=4", "'' is not an axis; accepted are"),
        ("x=0", "'x=0' is not an axis; .*sizes from 1 up"),
        ("x=-4", "'x=-4' is not an axis"),
        ("x=2.0", "'x=2.0' is not an axis"),
        ("x=\N{FULLWIDTH DIGIT TWO}", "is not an axis"),
        ("X=4", "'X=4' is not an axis; .*one lower-case letter each"),
        ("xy=4", "'xy=4' is not an axis"),
        ("x=4,x=2", "axis x is named twice; accepted are"),
        ("x=" + "9" * 100, "is not an axis"),
    ],
)
def test_what_is_no_mesh_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        parse_mesh(text)
    assert (caught.value.field, caught.value.value) == ("mesh", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (1,) * (len(AXES) + 1), (2, 0)])
def test_a_shape_of_too_few_or_many_axes_is_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match=f"1 to {len(AXES)} axes of size 1 or more are accepted") as caught:
        Mesh.of(shape)
    assert caught.value.field == "mesh"
