"""The examples in docstrings run as written."""

import doctest

import pytest

import partita
import partita.engine.engine


@pytest.mark.parametrize("module", [partita, partita.engine.engine], ids=lambda module: module.__name__)
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted >= 2
    assert found.failed == 0
