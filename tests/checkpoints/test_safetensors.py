"""Damaged safetensors files: whatever the bytes, one clear line or a file that reads whole."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoints.tiny_folder import safetensors_bytes

from partita.checkpoints.safetensors import FLOATS, SafetensorsFile
from partita.errors import InputError

TENSORS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.float16),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(TENSORS))
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        SafetensorsFile(path)
    assert (caught.value.field, caught.value.value) == ("model", str(path))
    assert "\n" not in str(caught.value)
    return caught.value.message


def test_tensors_are_read_by_slices(file: Path):
    read = SafetensorsFile(file)
    assert {name: tensor.shape for name, tensor in read.tensors.items()} == {
        name: tensor.shape for name, tensor in TENSORS.items()
    }
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(read.read(name, ()), tensor.astype(np.float32))
    np.testing.assert_array_equal(read.read("a.weight", (slice(1, 3), slice(0, 2))), [[4, 5], [8, 9]])


def test_a_file_cut_at_every_byte_is_refused(file: Path):
    for size in range(file.stat().st_size - 1, -1, -1):
        os.truncate(file, size)
        refused(file)


def test_bytes_beyond_the_last_tensor_are_refused(file: Path):
    file.write_bytes(file.read_bytes() + b"\0")
    assert "bytes, and its header lists" in refused(file)


def reads_whole(path: Path) -> bool:
    """Whether all of a file can be had; any exception but InputError, on one line, is a failure."""
    try:
        read = SafetensorsFile(path)
        for name, tensor in read.tensors.items():
            if tensor.format in FLOATS:
                assert read.read(name, ()).shape == tensor.shape
    except InputError as error:
        if "\n" in str(error):
            raise
        return False
    return True


def test_flipped_header_bits_never_give_a_traceback(file: Path):
    whole = bytearray(file.read_bytes())
    refusals = 0
    for position in range(8 + int.from_bytes(whole[:8], "little")):
        for bit in (position % 8, 7 - position % 7):
            damaged = whole.copy()
            damaged[position] ^= 1 << bit
            file.write_bytes(damaged)
            refusals += not reads_whole(file)
    assert refusals > len(whole) / 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rest=st.binary(max_size=100))
def test_any_bytes_are_refused(tmp_path: Path, rest: bytes):
    path = tmp_path / "noise.safetensors"
    path.write_bytes(len(rest).to_bytes(8, "little") + rest + b"\1")
    refused(path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "header is not a JSON object"),
        ({"a": 1}, "does not say how tensor 'a' is stored"),
        ({"a": {**GOOD, "shape": [-2]}}, "does not say how tensor 'a' is stored"),
        ({"a": {**GOOD, "shape": [True]}}, "does not say how tensor 'a' is stored"),
        ({"a": {**GOOD, "data_offsets": [0]}}, "does not say how tensor 'a' is stored"),
        ({"a": {**GOOD, "dtype": "F7"}}, "in the unknown number format 'F7'"),
        ({"a": {**GOOD, "shape": [3]}}, "tensor 'a' of shape (3,) has 8 bytes as F32"),
        ({"a": {**GOOD, "data_offsets": [4, 12]}}, "tensor 'a' begins at byte"),
        ({"a": GOOD, "b": GOOD}, "tensor 'b' begins at byte"),
        ({"a": {**GOOD, "shape": [4], "data_offsets": [0, 16]}}, "inside or before tensor 'a'"),
    ],
)
def test_headers_that_do_not_fit_are_refused(header: Any, message: str, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    assert message in refused(path)


def test_what_is_no_file_is_named_as_such(tmp_path: Path):
    assert "cannot be read" in refused(tmp_path / "missing")
    assert "cannot be read" in refused(tmp_path)
    (tmp_path / "empty").touch()
    assert "is empty" in refused(tmp_path / "empty")
