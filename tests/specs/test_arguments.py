"""Whole numbers of the public API: NumPy's count, bools and fractions do not."""

from __future__ import annotations

import numpy as np
import pytest

from partita.errors import InputError
from partita.specs.arguments import as_whole, whole_number


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), (np.int64(3), 3), (True, None), (3.0, None), ("3", None), (None, None)]
)
def test_what_is_a_whole_number(value: object, number: int | None):
    assert as_whole(value) == number
    if number is None:
        with pytest.raises(InputError, match=r"size: .*: a whole number of at least 1 is accepted"):
            whole_number("size", value)
    else:
        assert type(whole_number("size", value)) is int


def test_a_whole_number_below_the_least_is_refused():
    assert whole_number("size", 0, least=0) == 0
    with pytest.raises(InputError, match=r"size: 0: a whole number of at least 1 is accepted"):
        whole_number("size", 0)
