"""`write_whole`: a file is the old one or the new one, and nothing is left beside it."""

import os
import stat
from pathlib import Path

import pytest

from partita.errors import InputError
from partita.files import write_whole


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    return path


def only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_text_replaces_the_old(file: Path):
    write_whole(file, "ñew\n", "save")
    assert file.read_bytes() == "ñew\n".encode()
    assert only(file.parent) == ["plan.json"]


def test_a_file_is_made_with_the_permissions_any_new_file_has(tmp_path: Path):
    made, other = tmp_path / "made", tmp_path / "other"
    write_whole(made, "", "save")
    other.write_text("", encoding="utf-8")
    assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.parametrize("step", ["fdopen", "chmod", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    step: str, file: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match="cannot be written: No space left on device") as caught:
        write_whole(file, "new", "save")
    assert (caught.value.field, caught.value.value) == ("save", file)
    assert file.read_text(encoding="utf-8") == "old"
    assert only(file.parent) == ["plan.json"]


def test_text_that_cannot_be_encoded_leaves_the_old_file_and_nothing_else(file: Path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \udcff", "save")
    assert file.read_text(encoding="utf-8") == "old"
    assert only(file.parent) == ["plan.json"]


def test_a_missing_folder_and_a_folder_are_refused(tmp_path: Path):
    for path, why in ((tmp_path / "none" / "plan.json", "No such file"), (tmp_path, "")):
        with pytest.raises(InputError, match=f"cannot be written: {why}"):
            write_whole(path, "new", "save")
    assert only(tmp_path) == []
    assert not [name for name in os.listdir(tmp_path.parent) if name.startswith(f".{tmp_path.name}.")]
