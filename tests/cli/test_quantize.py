"""`partita quantize`: a folder that other commands take, and what is refused."""

from pathlib import Path

import pytest
from tests.cli.conftest import Partita

from partita.checkpoints.open import open_checkpoint
from partita.specs.parameters import all_parameters


def test_a_folder_is_made_that_other_commands_take(partita: Partita, tiny: Path, tmp_path: Path):
    out = tmp_path / "out"
    made = partita("quantize", tiny, out)
    assert made.code == 0
    assert f"{out}: tiny in int8" in made.out.replace("\n", "")
    assert open_checkpoint(str(out)).quantised
    predict = ("--on", "tpu-v4:2x2x1", "--phase", "decode", "--mesh", "x=2,y=2", "--ffn", "ws2d")
    found = partita("predict", out, *predict, "--attention", "batch", "--batch", 4, "--context", 64)
    assert (found.code, found.err) == (0, "")


def test_its_json(partita: Partita, tiny: Path, tmp_path: Path):
    found = partita("quantize", tiny, tmp_path / "out", "--dtype", "f32", "--json").json
    checkpoint = open_checkpoint(str(tmp_path / "out"))
    assert found.keys() == {"out", "parameters", "bytes", "seconds"}
    assert (found["out"], found["parameters"]) == (str(tmp_path / "out"), checkpoint.model.parameters)
    expected = 0
    for name in all_parameters(checkpoint.model):
        values = checkpoint.read(name)
        quantised = name in checkpoint.quantised
        expected += values.size + 4 * checkpoint.read_scale(name, ()).size if quantised else 4 * values.size
    assert found["bytes"] == expected
    assert found["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        (("{tiny}", "{here}"), "out", "is there already"),
        (("{tiny}", "{here}/none/out"), "out", "cannot be written: No such file or directory"),
        (("{tiny}", "{here}/out", "--dtype", "int4"), "dtype", "accepted are bf16, f32"),
        (("{here}/none.gguf", "{here}/out"), "model", "cannot be read"),
        (("{here}", "{here}/out"), "model", "has no config.json"),
        (("palm-540b", "{here}/out"), "model", "its weights cannot be read here"),
        (("{tiny}",), "out", "is needed: Folder to write"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], field: str, message: str, partita: Partita, tiny: Path, tmp_path: Path
):
    ran = partita("quantize", *(text.format(tiny=tiny, here=tmp_path) for text in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {field}")
    assert message.lower() in ran.err.lower()
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
