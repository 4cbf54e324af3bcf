"""The frontier as a table and as a plot: what was found is drawn, and files are whole or not there."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.planner.settings import setting
from tests.report.shown import text_of

from partita.errors import InputError
from partita.planner import Plan, PlanRequest, best_plan, make_plan
from partita.planner.chips import parse_clusters
from partita.planner.frontier import Point, over_batches
from partita.report.frontier import frontier_table, panels, plot_frontier
from partita.specs import Formats, Workload, catalogue_model, format_range, format_seconds


@pytest.fixture(scope="module")
def plan() -> Plan:
    """PaLM 8B on 1 to 4 chips at every batch, by the estimate."""
    request = PlanRequest(
        model=catalogue_model("palm-8b"),
        clusters=tuple(parse_clusters("tpu-v4:auto", 4)),
        formats=(Formats(),),
        workload=Workload(prompt=256, output=16, batch=1),
        objective="cost",
        auto_batch=True,
        basis="estimate",
    )
    return best_plan(request)


def merit(point: Point, basis: str) -> tuple[float, float, float]:
    """Seconds, chip-seconds per token and MFU, from the time alone."""
    prediction, setting = point.prediction, point.prediction.setting
    timed = prediction if basis == "bound" else prediction.estimate
    assert timed is not None
    decode = prediction.phase == "decode"
    seconds = timed.step_seconds if decode else timed.total_seconds
    tokens = prediction.batch * (1 if decode else setting.workload.prompt)
    cost = setting.cluster.chips * seconds / tokens
    needed = prediction.phase_flops / tokens
    return seconds, cost, needed / (cost * setting.cluster.chip.peak_flops["bf16"])


def rows(plan: Plan, most: int) -> list[list[str]]:
    """The cells of each point's first line; a wide layout goes on below it."""
    lines = text_of(frontier_table(plan, most)).splitlines()[1:]
    return [line.split() for line in lines if line.startswith(("decode", "prefill"))]


def test_the_table_has_every_point_where_there_is_room(plan: Plan):
    found = rows(plan, 1000)
    assert len(found) == len(plan.frontier) > 4
    for row, point in zip(found, plan.frontier, strict=True):
        assert row[:3] == [
            point.prediction.phase,
            f"{point.prediction.setting.cluster.chips:,}",
            f"{point.prediction.batch:,}",
        ]
        seconds, cost, mfu = merit(point, "estimate")
        assert row[-2:] == [f"{cost * 1e3:.3g}", f"{mfu:.1%}"]
        expected = point.prediction.estimate
        assert expected is not None
        around = expected.total_interval if point.prediction.phase == "prefill" else expected.step_interval
        bound = merit(point, "bound")[0]
        assert " ".join(row[:-2]).endswith(f" {format_range(seconds, around)} {format_seconds(bound)}")


@pytest.mark.parametrize("bare", [True, False])
def test_by_the_bound_its_cost_and_mfu_are_the_bounds(bare: bool):
    """With a profile the estimate stands beside it, without one there is none."""
    given = setting("palm-8b", "tpu-v5p:1x2x2" if bare else "tpu-v4:1x2x2", prompt=256, output=16, batch=8)
    plan = make_plan(given, basis="bound")
    head = text_of(frontier_table(plan)).splitlines()[0]
    assert ("time, estimated" in head) == (not bare)
    assert "MFU, at most" in head
    found = rows(plan, 1000)
    assert len(found) == len(plan.frontier) > 1
    for row, point in zip(found, plan.frontier, strict=True):
        _, cost, mfu = merit(point, "bound")
        assert row[-2:] == [f"{cost * 1e3:.3g}", f"{mfu:.1%}"]


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
        "chip-milliseconds per token",
        "seconds per generated token (one step)",
        "which no run that waits for its communication beats",
        "estimate",
        "Prompts of 256 tokens",
    ):
        assert said in text
    ends = plan.frontier[0].prediction
    assert f"C:{ends.setting.cluster.chips}, B:{ends.batch}" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.SVG", "frontier.png"]


def test_an_estimated_curve_has_its_band_and_the_bound_beside_it(plan: Plan):
    points = [point for point in plan.frontier if point.prediction.phase == "decode"]
    cost, mfu = panels(plan)[:2]
    assert [series.kind for series in cost.series] == [series.kind for series in mfu.series]
    estimate, bound = cost.series
    assert (estimate.kind, bound.kind) == ("estimate", "bound")
    assert len(estimate.labels) == len(points)
    assert (bound.labels, bound.band) == ((), ())
    assert estimate.x == pytest.approx([merit(point, "estimate")[0] for point in points])
    assert estimate.y == pytest.approx([1e3 * merit(point, "estimate")[1] for point in points])
    assert bound.x == pytest.approx([merit(point, "bound")[0] for point in points])
    assert bound.y == pytest.approx([1e3 * merit(point, "bound")[1] for point in points])
    first, last = estimate.band[0], estimate.band[-1]  # around the first point: faster, slower
    expected = points[0].prediction.estimate
    assert expected is not None
    assert (first[0], last[0]) == pytest.approx(expected.step_interval)
    assert first[1] / estimate.y[0] == pytest.approx(expected.step_interval[0] / expected.step_seconds)
    # a longer time is a higher cost and a lower MFU
    assert mfu.series[0].band[0][1] > mfu.series[0].y[0] > mfu.series[0].band[-1][1]
    assert len(estimate.band) == 2 * len(points)


def test_without_a_profile_the_bound_is_alone():
    plan = make_plan(setting("palm-8b", "tpu-v5p:1x2x2", prompt=256, output=16, batch=8))
    for panel in panels(plan):
        assert [(series.kind, series.band) for series in panel.series] == [("bound", ())]
        assert panel.y_label in ("MFU, at most", "chip-milliseconds per token, at least")


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
