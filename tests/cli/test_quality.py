"""`partita quality` on a tiny model: one object, a table, and refusals before anything is run."""

from pathlib import Path

import pytest
from tests.cli.conftest import Partita

INT8 = ["int8", "int8", "f32", "f32"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("abcd1234" * 12, encoding="utf-8")
    return tmp_path / "text"


def test_one_object_with_a_row_for_each_format(partita: Partita, tiny: Path, text: Path):
    run = ("--text", text, "--tokens", 60, "--window", 30, "--mesh", "x=2", "--formats", "int8,int8+kv,f32")
    found = partita("quality", tiny, *run, "--json").json
    assert found["text"] == str(text)
    assert (found["tokens"], found["windows"], found["window"]) == (58, 2, 30)
    assert (found["mesh"], found["layout"], found["device"]) == ({"x": 2}, "ws2d/heads", "cpu")
    rows = found["formats"]
    assert [(row["name"], row["weights"], row["activations"], row["kv"]) for row in rows] == [
        ("f32", "f32", "f32", "f32"),
        ("int8", "int8", "f32", "f32"),
        ("int8+kv", "int8", "f32", "int8"),
    ]
    assert (rows[0]["perplexity_change"], rows[0]["agreement"], rows[0]["logit_largest_error"]) == (0, 1, 0)
    for row in rows[1:]:
        assert row["perplexity"] == pytest.approx(rows[0]["perplexity"] * (1 + row["perplexity_change"]))
        assert 0 < row["logit_rms_error"] < row["logit_largest_error"] < 1
        assert row["kl_divergence"] > 0
        assert row["perplexity_change_standard_error"] > 0


def test_a_table_with_its_conditions(partita: Partita, tiny: Path, text: Path):
    ran = partita("quality", tiny, "--text", text, "--tokens", 20, "--formats", "int8")
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())  # which breaks lines where they are too long
    assert said.startswith(f"tiny: 19 tokens of {text} predicted, in windows of 20; ws2d/heads on x=1 of cpu")
    lines = [line.split() for line in ran.out.splitlines()]
    (exact,), (int8,) = ([line for line in lines if line[:4] == row] for row in (["f32"] * 4, INT8))
    assert exact[5:8] == ["+0.00%", "±", "0.00%"]
    assert float(int8[4]) == pytest.approx(float(exact[4]), rel=0.1)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--formats", "int4"), "error: formats: int4: accepted are f32, bf16, int8, int8+kv"),
        (("--activations", "int8"), "error: activations: int8: accepted are f32, bf16"),
        (("--tokens", 1), "error: tokens: 1: 2 or more tokens are accepted"),
        (("--window", 0), "error: window: 0: 2 to 64 tokens are accepted"),
        (("--window", 96), "error: window: 96: 2 to 64 tokens are accepted"),
        (("--text", "no such file"), "error: text: no such file: cannot be read: No such file or directory"),
        (("--attention", "sideways"), "error: attention: sideways: "),
        (("--ffn", ""), "error: ffn: : unknown layout"),
        (("--attention", ""), "error: attention: : unknown layout"),
    ],
    ids=str,
)
def test_refusals(partita: Partita, tiny: Path, text: Path, options: tuple, line: str):
    ran = partita("quality", tiny, "--text", text, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(line)
    assert ran.err.count("\n") == 1


def test_a_text_that_is_none(partita: Partita, tiny: Path, tmp_path: Path):
    (tmp_path / "text").write_bytes(b"\xff\xfe\xff")
    ran = partita("quality", tiny, "--text", tmp_path / "text")
    assert ran.code == 2
    assert ran.err == f"error: text: {tmp_path / 'text'}: is not UTF-8 text\n"
