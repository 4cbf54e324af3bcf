"""`partita reproduce`: what it lists, prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Partita

from partita.report.reproduce import EXHIBITS


def test_without_a_name_it_lists_what_there_is(partita: Partita):
    ran = partita("reproduce")
    assert (ran.code, ran.err) == (0, "")
    for name, what in EXHIBITS.items():
        assert name in ran.out
        assert what in ran.out
    found = partita("reproduce", "--json").json
    assert found["schema"] == "partita.reproduce/1"
    assert {row["name"]: row["shows"] for row in found["exhibits"]} == EXHIBITS


def test_a_table_is_printed_beside_what_is_published(partita: Partita):
    ran = partita("reproduce", "table2")
    assert (ran.code, ran.err) == (0, "")
    assert "low-latency decode" in ran.out
    assert "1.82 s" in ran.out
    assert "seen in secondary sources" in " ".join(ran.out.split())
    found = partita("reproduce", "TABLE2", "--json").json
    (exhibit,) = found["exhibits"]
    assert (exhibit["name"], exhibit["files"]) == ("table2", [])
    row = exhibit["tables"][0]["rows"][1]
    assert (row["published_seconds"], row["batch"]) == (1.82, 64)
    assert row["published_over_bound"] == pytest.approx(1.82 / row["bound_seconds"])


def test_a_figure_is_written_with_its_text_and_json(partita: Partita, tmp_path: Path):
    folder = tmp_path / "new" / "folder"
    ran = partita("reproduce", "figure6", "--out", folder)
    assert (ran.code, ran.err) == (0, "")
    assert {path.name for path in folder.iterdir()} == {"figure6.png", "figure6.txt", "figure6.json"}
    assert (folder / "figure6.png").read_bytes().startswith(b"\x89PNG")
    assert "2D weight-stationary" in (folder / "figure6.json").read_text("utf-8")
    assert "Decode latency per token" in (folder / "figure6.txt").read_text("utf-8")
    again = partita("reproduce", "figure6", "--json", "--out", folder, "--svg").json
    assert str(folder / "figure6.svg") in again["exhibits"][0]["files"]
    assert (folder / "figure6.svg").read_text("utf-8").startswith("<?xml")
    written = json.loads((folder / "figure6.json").read_text("utf-8"))
    assert written["schema"] == "partita.reproduce/1"
    assert written["exhibits"][0] == {k: v for k, v in again["exhibits"][0].items() if k != "files"}


@pytest.mark.full
def test_a_folder_without_a_name_takes_everything(partita: Partita, tmp_path: Path):
    ran = partita("reproduce", "--out", tmp_path)
    assert ran.code == 0
    names = {path.name for path in tmp_path.iterdir()}
    figures = [name for name in EXHIBITS if name.startswith(("figure", "fidelity"))]
    assert names == {f"{n}{s}" for n in EXHIBITS for s in (".txt", ".json")} | {f"{n}.png" for n in figures}
    assert ran.out.replace("\n", "").count("written: ") == len(names)


def test_what_is_wrong_is_said_in_one_line(partita: Partita, tmp_path: Path):
    ran = partita("reproduce", "figure2")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: name: figure2: accepted are figure1, ")
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        ran = partita("reproduce", "table1", "--out", out)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert f"error: out: {out}: " in ran.err
    assert (tmp_path / "file").read_text() == "mine"
    refused = partita("reproduce", "nothing", "--json")
    assert (refused.code, refused.json["error"]["field"]) == (2, "name")
