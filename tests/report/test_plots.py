"""Plots: what is drawn and written, and what is refused. Numbers are read back from the figure."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from partita.errors import InputError
from partita.report.plots import Panel, ReferenceLine, Series, check_path, draw, save
from partita.report.point_labels import Box, Label, along, place

PANEL = Panel(
    title="Time by size",
    x_label="Size (tokens)",
    y_label="Time (ms)",
    series=(
        Series("small", (1, 2, 4), (10, 8, 6), labels=("a", "", "c"), hollow=(False, False, True)),
        Series("small", (2,), (12,), "published", colour=0),
    ),
    lines=(ReferenceLine("x", 3, "limit"),),
    x_scale="log2",
    x_ticks=(1, 2, 4),
)


def legend(panel: Panel) -> tuple[str, list[str]]:
    """Its title and entries."""
    found = draw([panel], title="t").axes[0].get_legend()
    assert found is not None
    return found.get_title().get_text(), [text.get_text() for text in found.get_texts()]


def test_a_panel_shows_its_points_labels_and_kinds():
    axes = draw([PANEL], title="Title", caption=["One.", "Two."]).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Size (tokens)", "Time (ms)")
    lines = [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in axes.lines
    ]
    assert ([1, 2, 4], [10, 8, 6]) in lines
    assert ([4], [6]) in lines  # the hollow point over it
    assert ([2], [12]) in lines
    assert {text.get_text() for text in axes.texts} == {"a", "c", "limit"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    assert legend(PANEL) == ("lines: bound; hollow: does not fit", ["small", "small (published)"])


def test_bound_and_estimate_in_one_panel_are_told_apart():
    both = replace(PANEL, series=(PANEL.series[0], Series("small", (1, 2), (20, 16), "estimate")))
    assert legend(both) == ("hollow: does not fit", ["small (bound)", "small (estimate)"])


def test_panels_of_the_same_series_share_a_legend_and_others_do_not():
    other = replace(PANEL, series=(Series("large", (1, 2), (3, 4)),))
    alike, apart = draw([PANEL, PANEL], title="t"), draw([PANEL, other, other], title="t")
    assert len(alike.legends) == 1
    assert [axes.get_legend() for axes in alike.axes] == [None, None]
    assert not apart.legends
    assert [axes.get_legend() is None for axes in apart.axes] == [
        False,
        False,
        False,
        True,
    ]  # the fourth is empty


@pytest.mark.parametrize(("y_scale", "low"), [("linear", 0.0), ("log", 5.0)])
def test_headroom_is_kept_free_above_the_points(y_scale, low: float):
    plain = draw([replace(PANEL, y_scale=y_scale)], title="t").axes[0].get_ylim()
    roomy = draw([replace(PANEL, y_scale=y_scale, headroom=0.5)], title="t").axes[0].get_ylim()
    assert roomy[0] == plain[0] >= low
    scale = math.log if y_scale == "log" else float
    share = (scale(roomy[1]) - scale(plain[1])) / (scale(plain[1]) - scale(plain[0]))
    assert share == pytest.approx(0.5)


def test_the_suffix_decides_the_form(tmp_path: Path):
    figure = draw([PANEL], title="Title")
    save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    save(figure, tmp_path / "a.SVG")
    root = ElementTree.parse(tmp_path / "a.SVG").getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Title", "Time (ms)", "limit"} <= texts
    save(draw([PANEL], title="Title"), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "a.SVG").read_bytes()


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path):
    figure = draw([PANEL], title="Title")
    with pytest.raises(InputError, match=r"plot: .*a\.pdf: accepted are names that end in \.png or \.svg"):
        save(figure, tmp_path / "a.pdf")
    with pytest.raises(InputError, match="accepted"):
        check_path(tmp_path / "plain")
    with pytest.raises(InputError, match=r"out: .*cannot be written"):
        save(figure, tmp_path / "missing" / "a.png", "out")
    assert list(tmp_path.iterdir()) == []


# -- labels beside points -------------------------------------------------------------------------------

FRAME = Box(0, 0, 400, 300)


def boxes(labels: list[Label], offsets, size: float = 10) -> list[Box]:
    """What placed labels cover, from the widths that `place` reckons with."""
    found = []
    for label, offset in zip(labels, offsets, strict=True):
        if offset is not None:
            x, y = label.point[0] + offset[0], label.point[1] + offset[1]
            found.append(Box(x, y, x + 0.6 * size * len(label.text), y + 1.15 * size))
    return found


def test_labels_cover_neither_points_nor_each_other_nor_leave_the_frame():
    labels = [Label(f"point {i}", (20.0 + 12 * i, 40.0 + 5 * (i % 4))) for i in range(30)]
    points = [label.point for label in labels]
    taken = [Box(300, 0, 400, 80)]
    offsets = place(labels, points, taken, FRAME, scale=1, font_size=10)
    found = boxes(labels, offsets)
    assert 3 <= len(found) < 30  # some find room and not all can
    for i, box in enumerate(found):
        assert box.within(FRAME)
        assert not any(box.covers(other) for other in found[:i] + taken)
        assert not any(box.left < x < box.right and box.bottom < y < box.top for x, y in points)


def test_a_lone_label_stands_right_above_its_point_unless_the_frame_ends_there():
    ((x, y),) = filter(None, place([Label("ab", (50, 50))], [(50, 50)], [], FRAME, 1, 10))
    assert x > 0 < y
    ((x, _),) = filter(None, place([Label("ab", (399, 50))], [(399, 50)], [], FRAME, 1, 10))
    assert x < 0
    assert place([Label("too wide for it" * 10, (50, 50))], [], [], FRAME, 1, 10) == [None]


def test_a_line_is_followed_in_small_steps():
    found = along([(0, 0), (30, 40), (30, 41)], step=5)
    assert found[0] == (0, 0)
    assert found[-1] == (30, 41)
    assert (30, 40) in found
    assert max(math.dist(a, b) for a, b in pairwise(found)) <= 5 + 1e-9
    assert along([]) == []
