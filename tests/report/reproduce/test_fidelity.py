"""The fidelity exhibit: every published time is in it, and its errors are those of its own rows."""

import numpy as np
import pytest

from partita.measure.refit import measured_runs
from partita.report.reproduce import build
from partita.report.reproduce.exhibit import Exhibit, ExhibitTable
from partita.report.reproduce.fidelity import cells
from partita.report.reproduce.published import published
from partita.report.reproduce.show import as_text, picture
from partita.specs.catalogue import profile, profile_names


@pytest.fixture(scope="module")
def exhibit() -> Exhibit:
    return build("fidelity")


@pytest.fixture(scope="module")
def tables(exhibit: Exhibit) -> dict[str, ExhibitTable]:
    return {table.title: table for table in exhibit.tables}


def test_every_published_time_is_a_cell():
    times = {round(cell.published, 6) for cell in cells()}
    for row in published("table2").rows:
        assert row["seconds"] in times
    for row in published("ours-20-8").rows:
        assert {row["prefill_ms"] / 1e3, row["decode_ms"] / 1e3} <= times
    for row in published("fastertransformer-20-8").rows:
        assert {row[column] / 1e3 for column in ("tp16_ms", "tp32_ms", "pp3_tp8_ms")} <= times
    assert sum(cell.profile == "h100" for cell in cells()) == 357


def test_bounds_are_below_every_published_time_and_estimate():
    assert {cell.profile for cell in cells()} == set(profile_names())
    assert len(cells()) >= 31 + 2 + 27 + 357 + 18
    for cell in cells():
        assert cell.bound < cell.published, cell.name
        assert cell.bound <= cell.estimate, cell.name
        assert cell.low < cell.estimate < cell.high


def test_errors_by_table_are_those_of_the_cells(tables: dict[str, ExhibitTable]):
    for row in tables["Errors by table"].rows:
        name, whole = row["table"].removesuffix(", all"), row["table"].endswith(", all")
        group = [c for c in cells() if (c.profile if whole else c.table) == name]
        group = [cell for cell in group if cell.fitted == row["fitted"]]
        sizes = [abs(cell.estimate - cell.published) / cell.published for cell in group]
        assert row["cells"] == len(group)
        assert row["median_error"] == pytest.approx(np.median(sizes))
        assert row["p90_error"] == pytest.approx(np.percentile(sizes, 90))
        assert row["worst_error"] == pytest.approx(max(sizes))
        made = name.startswith("tpu-v5e") and not row["fitted"]  # the interval is made of them
        inside = [cell.low <= cell.published <= cell.high for cell in group]
        assert row["inside"] == (None if made else pytest.approx(np.mean(inside)))


def test_targets_of_the_two_published_profiles_are_met(tables: dict[str, ExhibitTable]):
    rows = {(row["table"], row["fitted"]): row for row in tables["Errors by table"].rows}
    tpu, gpu = rows["tpu-v4, all", True], rows["a100, all", True]
    assert tpu["median_error"] < 0.03
    assert tpu["worst_error"] < 0.12
    assert gpu["median_error"] < 0.04
    assert gpu["worst_error"] < 0.20
    assert rows["tpu-v4: Figure 1, text", False]["worst_error"] < 0.03


def test_every_constant_has_an_interval_or_a_reason(tables: dict[str, ExhibitTable]):
    constants = table(tables, "Constants")
    assert {row["profile"] for row in constants.rows} == {cell.profile for cell in cells()}
    for row in constants.rows:
        constant = profile(row["profile"]).constants[row["constant"]]
        assert (row["low"] is None) == (row["high"] is None) == (constant.fixed is not None)
        assert row["meaning"]


def test_a_fixed_constant_says_why(tables: dict[str, ExhibitTable]):
    said = {(row["profile"], row["constant"]): row["fixed"] for row in table(tables, "Why").rows}
    for row in table(tables, "Constants").rows:
        assert (row["low"] is None) == ((row["profile"], row["constant"]) in said)
    assert min(map(len, said.values())) > 20


def test_settings_left_out_are_those_of_the_profiles(tables: dict[str, ExhibitTable]):
    rows = table(tables, "Settings").rows
    tables_of = {
        "tpu-v4": {run.group for run in measured_runs("tpu-v4")},
        "a100": {"TP16", "TP32", "PP3/TP8"},
    }
    for name, groups in tables_of.items():
        found = [row for row in rows if row["profile"] == name]
        assert {row["setting"] for row in found} == groups
        assert sum(row["count"] for row in found) == sum(c.profile == name and c.fitted for c in cells())
    held = {row["profile"]: row for row in table(tables, "Coverage").rows}
    for name, row in held.items():
        mine = [r for r in rows if r["profile"] == name]
        if name == "h100":  # left out in three ways; the widest gives the interval
            mine = [r for r in mine if "chip" in r["setting"]]
            assert len(mine) == 4
        shares = [(r["count"], r["inside"]) for r in mine]
        if shares:
            inside = sum(count * share for count, share in shares) / sum(count for count, _ in shares)
            assert row["inside_90"] == pytest.approx(inside, abs=1e-3)
            assert row["inside_90"] > 0.88
        else:  # its held-out steps give the width
            assert name == "tpu-v5e"
            assert row["inside_90"] is None


def test_it_is_shown_and_drawn(exhibit: Exhibit):
    assert as_text(exhibit)
    spread, calibration = exhibit.panels
    assert len(picture(exhibit).axes) == 2
    stars = [series for series in spread.series if series.kind == "published"]
    assert sum(len(series.x) for series in stars) == len(cells())
    for series in calibration.series:
        assert list(series.y) == sorted(series.y)
        assert 0 < series.y[0] < series.y[-1] <= 1


def table(tables: dict[str, ExhibitTable], start: str) -> ExhibitTable:
    (found,) = (table for title, table in tables.items() if title.startswith(start))
    return found
