"""Roles: the paper's names, any other combination in writing, and what is neither."""

import pytest

from partita.errors import InputError
from partita.sharding import ATTENTION_NAMES, FFN_NAMES, parse_layout, parse_roles
from partita.sharding.roles import AxisRoles, splits_heads


@pytest.mark.parametrize(
    ("name", "axes", "roles"),
    [
        ("ws1d", "xyz", "f f f"),
        ("ws2d", "xyz", "e f f"),
        ("wg-x", "xyz", "e-gathered f f"),
        ("wg-xy", "xyz", "e-gathered f-gathered f"),
        ("wg-xyz", "xyz", "e-gathered f-gathered f-gathered"),
        ("ws2d", "x", "e"),
        ("wg-xy", "x", "e-gathered"),
        ("wg-xy", "ab", "e-gathered f-gathered"),
        ("wg-xyz", "xyzw", "e-gathered f-gathered f-gathered f-gathered"),
    ],
)
def test_names_of_the_paper_give_each_axis_a_role(name: str, axes: str, roles: str):
    parsed = parse_roles(name, "batch", axes)
    assert parsed.weights == tuple(zip(axes, roles.split(), strict=True))
    assert parsed.attends == tuple((axis, "batch") for axis in axes)
    assert str(parsed) == f"{name}/batch"


@pytest.mark.parametrize("ffn", FFN_NAMES)
@pytest.mark.parametrize("attention", ATTENTION_NAMES)
def test_a_layout_is_both_names_with_a_slash(ffn: str, attention: str):
    assert parse_layout(f"{ffn}/{attention}", "xyz") == parse_roles(ffn, attention, "xyz")


def test_roles_are_written_per_axis_in_any_order():
    parsed = parse_roles("z=replica, x=f-gathered,y=e", "y=context,x=none, z=batch", "xyz")
    assert parsed.weights == (("x", "f-gathered"), ("y", "e"), ("z", "replica"))
    assert parsed.attends == (("x", "none"), ("y", "context"), ("z", "batch"))
    assert str(parsed) == "z=replica, x=f-gathered,y=e/y=context,x=none, z=batch"


def test_a_name_means_the_roles_it_stands_for():
    assert parse_roles("ws2d", "heads", "xyz").weights == parse_roles("x=e,y=f,z=f", "heads", "xyz").weights


FFN_ACCEPTED = (
    "accepted are ws1d, ws2d, wg-x, wg-xy, wg-xyz, or a role for every axis of the mesh such as "
    "x=e,y=e,z=e with roles e, f, e-gathered, f-gathered, replica"
)
ATTENTION_ACCEPTED = (
    "accepted are heads, batch, context, or a role for every axis of the mesh such as "
    "x=heads,y=heads,z=heads with roles heads, batch, context, none"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ws3d", "unknown layout"),
        ("WS2D", "unknown layout"),
        ("", "unknown layout"),
        ("x=e,y=f", "no role for axis z"),
        ("x=e", "no role for axis y, z"),
        ("x=e,y=f,z=g", "unknown role 'g'"),
        ("x=e,y=f,z=batch", "unknown role 'batch'"),
        ("x=e,y=f,z=", "unknown role ''"),
        ("x=e,y=f,w=f", "axis 'w' is not one of the mesh's (x, y, z)"),
        ("xy=e,z=f", "axis 'xy' is not one of the mesh's (x, y, z)"),
        ("=e,y=f,z=f", "axis '' is not one of the mesh's (x, y, z)"),
        ("x=e,y=f,y=f", "axis y is named twice"),
    ],
)
def test_a_feed_forward_layout_that_is_none_is_refused(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_roles(text, "heads", "xyz")
    assert (caught.value.field, caught.value.value) == ("ffn", text)
    assert caught.value.message == f"{message}; {FFN_ACCEPTED}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens", "unknown layout"),
        ("x=batch", "no role for axis y, z"),
        ("x=heads,y=f,z=none", "unknown role 'f'"),
        ("x=heads,y=batch,q=none", "axis 'q' is not one of the mesh's (x, y, z)"),
        ("x=heads,x=batch,y=none,z=none", "axis x is named twice"),
    ],
)
def test_an_attention_layout_that_is_none_is_refused(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_roles("ws2d", text, "xyz")
    assert (caught.value.field, caught.value.value) == ("attention", text)
    assert caught.value.message == f"{message}; {ATTENTION_ACCEPTED}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("ws2d", "layout"),
        ("", "layout"),
        ("ws2d/", "attention"),
        ("/batch", "ffn"),
        ("ws2d/batch/x", "attention"),
    ],
)
def test_a_layout_with_a_part_missing_or_too_many_is_refused(text: str, field: str):
    with pytest.raises(InputError) as caught:
        parse_layout(text, "xyz")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("weights", "stored", "tokens"),
    [
        ("e", "e", False),
        ("f", "f", False),
        ("e-gathered", "e", True),
        ("f-gathered", "f", True),
        ("replica", "", True),
    ],
)
def test_gathered_weights_are_stored_apart_and_used_where_tokens_are_split(weights, stored, tokens):
    role = AxisRoles(weights, "batch")
    assert (role.stored, role.splits_tokens) == (stored, tokens)
    assert splits_heads(role) == (stored == "f")
    assert splits_heads(AxisRoles(weights, "heads"))
