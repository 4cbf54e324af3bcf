"""Profiles: what they accept, which constant counts, and their files."""

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from partita.errors import InputError
from partita.specs import Constant, Profile, Region, parse_cluster
from partita.specs.catalogue import family_profile, profile, profile_names
from partita.specs.profile import COLLECTIVES, LEVELS, LINK_TERMS, TERMS, term_of
from partita.specs.toml import profile_toml

REGION = Region(
    parameters=(1e9, 2e9),
    chips=(4, 4),
    tokens=(1, 64),
    context=(100, 100),
    layouts=("ws1d/heads",),
    weights=("bf16", "int8"),
    activations=("bf16",),
    chip_names=("mine",),
)
FABRIC = '[[fabric]]\nkind = "switch"\nsize = 4\nlink_bandwidth = 25e9\n'


def made(constants: dict[str, float] | None = None) -> Profile:
    given = {name: Constant(value=v, fixed="given") for name, v in (constants or {}).items()}
    return Profile(name="made", source="here", constants=given)


def test_what_is_not_said_is_neutral():
    assert made().value("matmul_share") == 1
    assert made().value("half_rows") == made().link("message_seconds", "torus", "all-gather") == 0
    assert made({"matmul_share": 0.5}).value("matmul_share") == 0.5


def test_the_most_special_constant_of_links_counts():
    both = made({"switch/share": 0.5, "switch/all-reduce/share": 0.8})
    assert both.link("share", "switch", "all-reduce") == 0.8
    assert both.link("share", "switch", "all-gather") == 0.5
    assert both.link("share", "network", "all-reduce") == 1


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("speed", 1.0, "speed is not a constant"),
        ("ether/share", 0.5, "ether/share is not a constant"),
        ("switch/broadcast/share", 0.5, "is not a constant"),
        ("switch/all-reduce/all-gather/share", 0.5, "is not a constant"),
        ("matmul_share", 1.5, "matmul_share = 1.5 is not plausible: 0.05 to 1"),
        ("switch/share", 0.0, "is not plausible"),
        ("half_rows", -1.0, "is not plausible"),
        ("switch", 0.5, r"accepted are .*LEVEL\[/COLLECTIVE\]/message_seconds"),
    ],
)
def test_a_constant_that_is_none_or_not_plausible_is_refused(name: str, value: float, complaint: str):
    with pytest.raises(ValidationError, match=complaint):
        made({name: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"value": 1},
        {"value": 1, "low": 0.5},
        {"value": 1, "low": 0.5, "high": 2, "fixed": "both"},
        {"value": 1, "low": 2, "high": 3},
        {"value": float("nan"), "fixed": "no number"},
    ],
    ids=str,
)
def test_a_constant_is_fitted_with_an_interval_or_fixed_with_a_reason(fields: dict):
    with pytest.raises(ValidationError):
        Constant(**fields)


@pytest.mark.parametrize(
    ("field", "value"), [("chips", (8, 4)), ("tokens", (0, 4)), ("layouts", ()), ("weights", None)]
)
def test_a_region_is_whole(field: str, value: object):
    with pytest.raises(ValidationError, match=field):
        Region.model_validate(REGION.model_dump() | {field: value})


def test_every_term_accepts_what_changes_nothing():
    links = [f"{level}/{kind}/{name}" for level in LEVELS for kind in COLLECTIVES for name in LINK_TERMS]
    for name in (*TERMS, *links):
        term = term_of(name)
        assert term is not None
        assert term.low <= term.neutral <= term.high
        assert term.unit
        assert term.meaning


# -- of the catalogue -----------------------------------------------------------------------------------


def test_a_cluster_of_the_catalogue_has_the_profile_of_its_family():
    assert {"a100", "tpu-v4"} <= set(profile_names())
    assert parse_cluster("tpu-v4:4x4x4").profile == profile("TPU-v4") == family_profile("tpu-v4")
    assert parse_cluster("a100-80g:2x8").profile == profile("a100")
    assert parse_cluster("tpu-v5p:2x2x2").profile is None


def test_an_unknown_profile_is_refused():
    with pytest.raises(InputError, match="did you mean tpu-v4") as caught:
        profile("tpu-v44")
    assert caught.value.field == "profile"


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_say_what_they_rest_on(name: str):
    found = profile(name)
    assert found.source
    assert len(found.residuals) >= 9
    assert found.region
    fitted = [constant for constant in found.constants.values() if constant.fixed is None]
    assert fitted
    assert all(len(constant.fixed or "fixed for a reason") > 10 for constant in found.constants.values())


# -- as files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_written_as_toml_reads_back(name: str):
    found = profile(name)
    assert Profile.model_validate(tomllib.loads(profile_toml(found))) == found
    inside = tomllib.loads(profile_toml(found, "profile"))["profile"]
    assert Profile.model_validate(inside) == found
    assert "name" not in tomllib.loads(profile_toml(found, named=False))


def test_a_file_of_a_cluster_may_have_a_profile_of_its_own(tmp_path: Path):
    file = tmp_path / "mine.toml"
    mine = Profile(
        name="mine",
        source="measured here",
        constants={"switch/share": Constant(value=0.5, low=0.4, high=0.6)},
        region={"decode": REGION},
        residuals=(0.1, -0.2),
        compares=True,
    )
    file.write_text(f'chip = "a100-80g"\n{FABRIC}\n{profile_toml(mine, "profile")}')
    assert parse_cluster(str(file)).profile == mine


def test_a_file_of_a_cluster_may_name_one_of_the_catalogue(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(f'chip = "a100-80g"\nprofile = "a100"\n{FABRIC}')
    assert parse_cluster(str(file)).profile == profile("a100")
    file.write_text(f'chip = "a100-80g"\nprofile = "none"\n{FABRIC}')
    with pytest.raises(InputError, match="profile: none: unknown"):
        parse_cluster(str(file))
    wrong = '[profile]\nname = "x"\nsource = "y"\n[profile.constants]\nz = 1\n'
    file.write_text(f'chip = "a100-80g"\n{FABRIC}{wrong}')
    with pytest.raises(InputError, match="profile"):
        parse_cluster(str(file))


@pytest.mark.parametrize(
    "wrong",
    [
        {"probe_seconds": 0},
        {"probe_seconds": -1.0},
        {"coverage": [0.5, 0.6, 0.7, 0.8, 1.2]},
        {"coverage": [-0.1, 0.6, 0.7, 0.8, 0.9]},
        {"left_out": {"a": {"count": 1, "median": -0.1, "worst": 0.2, "inside": 1.0}}},
        {"left_out": {"a": {"count": 1, "median": 0.1, "worst": 0.2, "inside": 1.5}}},
        {"constants": {"matmul_share": {"value": "0.5", "fixed": "text"}}},
        {"constants": {"matmul_share": {"value": True, "fixed": "a truth value"}}},
        {"compares": "yes"},
        {"compares": 1},
    ],
    ids=str,
)
def test_what_is_no_such_number_is_refused(wrong: dict):
    whole = {"name": "made", "source": "here", "constants": {}}
    Profile.model_validate(whole)
    with pytest.raises(ValidationError):
        Profile.model_validate(whole | wrong)
