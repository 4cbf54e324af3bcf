"""The frontier as a table and as a plot: what was found is drawn, and files are whole or not there."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.planner.settings import setting
from tests.report.shown import text_of

from partita.errors import InputError
from partita.planner import Ask, Plan, best_plan, make_plan
from partita.planner.chips import parse_clusters
from partita.planner.frontier import over_batches
from partita.report.frontier import frontier_table, plot_frontier
from partita.specs import Formats, Workload, catalogue_model


@pytest.fixture(scope="module")
def plan() -> Plan:
    """PaLM 8B on 1 to 4 chips at every batch."""
    ask = Ask(
        model=catalogue_model("palm-8b"),
        clusters=tuple(parse_clusters("tpu-v4:auto", 4)),
        formats=(Formats(),),
        workload=Workload(prompt=256, output=16, batch=1),
        objective="cost",
        auto_batch=True,
    )
    return best_plan(ask.questions())


def rows(plan: Plan, most: int) -> list[list[str]]:
    lines = text_of(frontier_table(plan, most)).splitlines()[1:]
    return [line.split() for line in lines if line.strip()]


def test_the_table_has_every_point_where_there_is_room(plan: Plan):
    found = rows(plan, 1000)
    assert len(found) == len(plan.frontier) > 4
    for row, point in zip(found, plan.frontier, strict=True):
        assert row[:3] == [
            point.prediction.phase,
            f"{point.prediction.setting.cluster.chips:,}",
            f"{point.prediction.batch:,}",
        ]
        assert row[-1] == f"{point.prediction.mfu:.1%}"
        assert row[-2] == f"{point.chip_seconds_per_token * 1e3:.3g}"


def test_of_many_points_the_ends_are_kept(plan: Plan):
    for phase in ("decode", "prefill"):
        points = [point for point in plan.frontier if point.prediction.phase == phase]
        found = [row for row in rows(plan, 2) if row[0] == phase]
        assert [row[2] for row in found] == [
            f"{points[0].prediction.batch:,}",
            f"{points[-1].prediction.batch:,}",
        ]


def test_a_plan_for_one_batch_has_a_frontier_over_all_of_them():
    one = make_plan(setting("palm-8b", "tpu-v4:2x2x2", prompt=256, output=16, batch=1))
    assert {point.prediction.batch for point in one.frontier} == {1}
    over = replace(one, tables=over_batches(one.tables))
    assert len({point.prediction.batch for point in over.frontier}) > 5
    for phase in ("decode", "prefill"):
        points = [point for point in over.frontier if point.prediction.phase == phase]
        for a, b in pairwise(points):  # by rising time, and so by falling cost
            assert a.seconds < b.seconds
            assert a.chip_seconds_per_token > b.chip_seconds_per_token


def test_it_is_drawn_as_png_and_svg(plan: Plan, tmp_path: Path):
    png, svg = tmp_path / "frontier.png", tmp_path / "frontier.SVG"
    plot_frontier(plan, png)
    plot_frontier(plan, svg)
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.read_bytes().endswith(b"IEND\xaeB`\x82")
    text = "".join(ElementTree.fromstring(svg.read_bytes()).itertext())
    for said in (
        "palm-8b on tpu-v4:1x1x1 to",
        "decode: cost against latency",
        "prefill: MFU against latency",
        "chip-milliseconds per token, at least",
        "MFU, at most",
        "seconds per generated token (one step)",
        "no run that waits for its communication is faster or cheaper",
        "Prompts of 256 tokens",
    ):
        assert said in text
    ends = plan.frontier[0].prediction
    assert f"C:{ends.setting.cluster.chips}, B:{ends.batch}" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.SVG", "frontier.png"]


def test_drawing_again_gives_the_same_file(plan: Plan, tmp_path: Path):
    for name in ("a.svg", "b.svg"):
        plot_frontier(plan, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "none/plot.png"])
def test_what_cannot_be_written_leaves_nothing(plan: Plan, name: str, tmp_path: Path):
    with pytest.raises(InputError) as caught:
        plot_frontier(plan, tmp_path / name)
    assert (caught.value.field, caught.value.value) == ("plot", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_plot_that_cannot_be_replaced_stays_as_it_was(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "plot.png"
    file.write_bytes(b"the old one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        plot_frontier(plan, file)
    assert file.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]
