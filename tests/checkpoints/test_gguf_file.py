"""Damaged GGUF files: whatever the bytes, one clear line or a checkpoint that loads whole."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoints.tiny_gguf import WriteGGUF

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.gguf_file import GGUFFile
from partita.checkpoints.open import packaged_gguf
from partita.errors import InputError
from partita.specs.parameters import all_parameters


def assert_refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_gguf(path)
    assert (caught.value.field, caught.value.value) == ("model", str(path))
    assert "\n" not in str(caught.value)
    return caught.value.message


def sizes_of(path: Path) -> tuple[int, int]:
    """Where the tensors' bytes begin and end in a GGUF file."""
    tensors = GGUFFile(path).tensors.values()
    return min(tensor.start for tensor in tensors), max(tensor.stop for tensor in tensors)


def test_the_real_file_cut_short_is_refused_wherever_it_ends(tmp_path: Path):
    whole = packaged_gguf("smollm2-135m")
    data, end = sizes_of(whole)
    header = [0, 1, 4, 7, 8, 16, 23, 24, 31, 60, 300, 5_000, 500_000, data // 2, data - 20_000, data - 33]
    tensors = [data, data + 1, (data + end) // 2, end - 1_000_000, end - 1]
    cut = tmp_path / "cut.gguf"
    shutil.copyfile(whole, cut)
    for size in sorted([*header, *tensors], reverse=True):
        os.truncate(cut, size)
        assert_refused(cut)


def test_a_tiny_file_cut_at_every_byte_is_refused(write_gguf: WriteGGUF):
    path = write_gguf()
    data, end = sizes_of(path)
    os.truncate(path, end)
    open_gguf(path)
    for size in [*range(end - 1, data, -13), *range(data, -1, -1)]:
        os.truncate(path, size)
        assert_refused(path)


def test_flipped_header_bits_never_give_a_traceback(write_gguf: WriteGGUF):
    path = write_gguf()
    data, _ = sizes_of(path)
    whole = bytearray(path.read_bytes())
    refused = 0
    for position in range(data):
        for bit in (position % 8, 7 - position % 7):
            damaged = whole.copy()
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            refused += not loads_whole(path)
    assert refused > data / 2


def loads_whole(path: Path) -> bool:
    """Whether everything in the file can be had; any exception but InputError, on one line, is a failure."""
    try:
        checkpoint = open_gguf(path)
        for name, row in all_parameters(checkpoint.model).items():
            assert checkpoint.read(name).shape == row.shape
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.encode("abcd 34")
    except InputError as error:
        if "\n" in str(error):
            raise
        return False
    return True


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rest=st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_refused(tmp_path: Path, rest: bytes):
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + rest)
    with pytest.raises(InputError) as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_gguf_file_is_named_as_such(tmp_path: Path, write_gguf: WriteGGUF):
    assert "cannot be read" in assert_refused(tmp_path / "missing.gguf")
    assert "cannot be read" in assert_refused(tmp_path)
    text = tmp_path / "text.gguf"
    text.write_text("")
    assert "is empty" in assert_refused(text)
    text.write_text("hello, world")
    assert "not a GGUF file" in assert_refused(text)
    path = write_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + whole[4:8][::-1] + whole[8:])
    assert "big-endian" in assert_refused(path)
    path.write_bytes(whole[:4] + b"\x09" + whole[5:])
    assert "version 9" in assert_refused(path)


def test_formats_without_dequantisation_are_refused(write_gguf: WriteGGUF):
    path = write_gguf(tensors={"output_norm.weight": np.zeros(8, np.int32)})
    assert "'output_norm.weight' as I32, which cannot be dequantised" in assert_refused(path)
