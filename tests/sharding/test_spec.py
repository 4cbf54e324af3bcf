"""The notation: it reads what it writes, refuses what it cannot mean, and follows an einsum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sharding.shardings import shardings

from partita.sharding import Sharding, contract, parse


@given(dims=st.permutations("BLEFHKDSVN"), count=st.integers(0, 10), data=st.data())
def test_notation_reads_what_it_writes(dims: list[str], count: int, data: st.DataObject):
    sharding = data.draw(shardings("".join(dims[:count]), "xyzw", "xyzw"))
    assert parse(str(sharding)) == sharding
    assert str(parse(str(sharding))) == str(sharding)


@pytest.mark.parametrize(
    ("text", "dims", "axes", "partial"),
    [
        ("B_xy L E_z", "BLE", ("xy", "", "z"), ""),
        ("B L F_yz partialsum-x", "BLF", ("", "", "yz"), "x"),
        ("E_ M F_zy", "EMF", ("", "", "zy"), ""),
        ("  B   L_x  ", "BL", ("", "x"), ""),
        ("partialsum-zx", "", (), "xz"),
        ("B partialsum-y partialsum-x", "B", ("",), "xy"),
        ("", "", (), ""),
    ],
)
def test_notation_means_dims_axes_and_partial_sums(text: str, dims: str, axes: tuple[str, ...], partial: str):
    assert parse(text) == Sharding(dims, axes, partial)
    assert parse(text).partial == partial


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ("b L", "'b' in 'b L' is neither a dim like E_xy nor partialsum-x"),
        ("B_X", "'B_X' in 'B_X' is neither"),
        ("BL", "'BL' in 'BL' is neither"),
        ("B_x,L", "'B_x,L' in 'B_x,L' is neither"),
        ("B partialsum-", "'partialsum-' in 'B partialsum-' is neither"),
        ("B partialsum_x", "'partialsum_x' in"),
        ("B_x L_x", "a mesh axis is used twice in B_x L_x"),
        ("B_xx", "a mesh axis is used twice in B_xx"),
        ("B_x partialsum-x", "a mesh axis is used twice in B_x partialsum-x"),
        ("B B", "dims must be distinct"),
    ],
)
def test_notation_that_means_nothing_is_refused(text: str, blamed: str):
    with pytest.raises(ValueError, match=blamed):
        parse(text)


def test_every_dim_must_have_its_axes():
    with pytest.raises(ValueError, match="each have its axes"):
        Sharding("BLE", ("x", ""))


def test_order_of_axes_matters_on_a_dim_but_not_in_a_partial_sum():
    assert parse("B_xy") != parse("B_yx")
    assert parse("B partialsum-xy") == parse("B partialsum-yx")


def test_a_sharding_is_read_and_changed_by_dim():
    sharding = parse("B_x L E_yz partialsum-w")
    assert (sharding["B"], sharding["L"], sharding["E"], sharding["V"]) == ("x", "", "yz", "")
    assert sharding.split("E", "z") == parse("B_x L E_z partialsum-w")
    assert sharding.without("L") == parse("B_x E_yz partialsum-w")
    assert sharding.summing("") == parse("B_x L E_yz")
    assert sharding.rename("E", "F") == parse("B_x L F_yz partialsum-w")
    with pytest.raises(ValueError, match="used twice"):
        sharding.split("L", "x")


@pytest.mark.parametrize(
    ("einsum", "a", "b", "out"),
    [
        ("BLE,EF->BLF", "B L E_x", "E_x F_yz", "B L F_yz partialsum-x"),  # 2D weight-stationary, in
        ("BLF,FE->BLE", "B L F_yz", "F_yz E_x", "B L E_x partialsum-yz"),  # and out
        ("BLE,EF->BLF", "B_xyz L E", "E F", "B_xyz L F"),  # XYZ weight-gathered
        ("BLE,EMF->BLMF", "B_z L E_y", "E_y M F_x", "B_z L M F_x partialsum-y"),
        ("BLKGD,BSKD->BLKGS", "B_x L K_y G_z D", "B_x S K_y D", "B_x L K_y G_z S"),
        ("BLKGS,BSKD->BLKGD", "B_x L K_y G_z S_w", "B_x S_w K_y D", "B_x L K_y G_z D partialsum-w"),
        ("BLKGD,KGDE->BLE", "B L K_x G_y D", "K_x G_y D E_z", "B L E_z partialsum-xy"),
    ],
)
def test_einsum_leaves_a_partial_sum_over_contracted_axes(einsum: str, a: str, b: str, out: str):
    assert contract(einsum, parse(a), parse(b)) == parse(out)


@pytest.mark.parametrize(
    ("einsum", "a", "b", "blamed"),
    [
        ("BLE,EF->BLF", "B L E_x", "E F_y", "E is split differently in B L E_x and E F_y"),
        ("BLE,EF->BLF", "B L E_xy", "E_yx F", "E is split differently"),
        ("BSK,BSD->BSKD", "B_x S K", "B S D", "B is split differently"),
        ("BLE,EF->BLF", "B L E partialsum-x", "E F", "unreduced partial sum"),
        ("BLE,EF->BLF", "B L E", "E F partialsum-x", "unreduced partial sum"),
        ("BLE,EF->BLF", "B L F", "F E", "does not fit operands"),
        ("BLE,EF->BLF", "B_x L E", "E F_x", "a mesh axis is used twice"),
    ],
)
def test_einsum_of_operands_that_do_not_fit_is_refused(einsum: str, a: str, b: str, blamed: str):
    with pytest.raises(ValueError, match=blamed):
        contract(einsum, parse(a), parse(b))
