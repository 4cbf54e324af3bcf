"""Traces read from CSV files, and files that are none."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from partita.errors import InputError
from partita.specs import Traffic, read_trace


@pytest.fixture
def write(tmp_path: Path):
    def written(content: str | bytes) -> Path:
        path = tmp_path / "trace.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def test_columns_in_any_order_with_blank_lines_and_spaces(write):
    trace = read_trace(
        write(" Output, prompt ,weight,arrival,prefix\n64,2048,3,2024-01-01,0\n\n 8 , 16,1,,4\n  \n")
    )
    assert trace.prompt.tolist() == [2048, 16]
    assert trace.output.tolist() == [64, 8]
    assert trace.prefix.tolist() == [0, 4]
    assert trace.weight.tolist() == [0.75, 0.25]


@pytest.mark.parametrize(
    "content",
    [
        "prompt,output\n10,5\n20,5",
        "prompt,output\r\n10,5\r\n20,5\r\n",
        "\ufeffprompt,output\n10,5\n20,5\n",
        'prompt,output\n"10","5"\n20,5\n',
        "\n\nprompt,output\n10,5\n20,5\n",
        "prompt,output\n010,5\n20,5\n",
    ],
)
def test_forms_that_mean_the_same(write, content: str):
    trace = read_trace(write(content))
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([10, 20], [5, 5])
    assert trace.prefix.tolist() == [0, 0]
    assert trace.weight.tolist() == [0.5, 0.5]
    assert trace.longest == 25


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; accepted is a CSV file"),
        ("\n  \n", "is empty"),
        ("prompt,output\n", "line 1 is a header and no request follows"),
        ("prompt,output\n\n\n", "no request follows"),
        ("10,5\n20,5\n", "line 1: '10' is no known column"),
        ("prompt\n10\n", "line 1: there is no column output"),
        ("output,prefix\n10,0\n", "line 1: there is no column prompt"),
        ("prompt,output,timestamp\n1,1,1\n", "line 1: 'timestamp' is no known column"),
        ("promt,output\n1,1\n", "did you mean prompt?"),
        ("prompt;output\n1;1\n", "'prompt;output' is no known column"),
        ("prompt,output,prompt\n1,1,1\n", "line 1: the column prompt is named twice"),
        ("prompt,output\n1,1\n\n-5,1\n", "line 4, prompt: '-5' must be a whole number of tokens from 1 to"),
        ("prompt,output\n0,1\n", "line 2, prompt: '0'"),
        ("prompt,output\n1,0\n", "line 2, output: '0'"),
        ("prompt,output\n1,\n", "line 2, output: ''"),
        ("prompt,output\n1,12.5\n", "line 2, output: '12.5'"),
        ("prompt,output\n1,many\n", "line 2, output: 'many'"),
        ("prompt,output\n1,nan\n", "line 2, output: 'nan'"),
        ("prompt,output\n1,\x1b[31m7\n", r"line 2, output: '\x1b[31m7'"),
        ("prompt,output\n1e3,1\n", "line 2, prompt: '1e3'"),
        ("prompt,output\n1000000001,1\n", "from 1 to 1,000,000,000"),
        (f"prompt,output\n{'9' * 5000},1\n", "from 1 to 1,000,000,000"),
        ("prompt,output\n1,1000001\n", "from 1 to 1,000,000"),
        ("prompt,output,prefix\n8,1,8\n", "line 2, prefix: 8: must be less than the prompt, 8"),
        ("prompt,output,prefix\n8,1,-1\n", "line 2, prefix: '-1'"),
        ("prompt,output,weight\n8,1,0\n", "line 2, weight: '0' must be a number from 1e-12 to 1e12"),
        ("prompt,output,weight\n8,1,-1\n", "line 2, weight: '-1'"),
        ("prompt,output,weight\n8,1,inf\n", "line 2, weight: 'inf'"),
        ("prompt,output\n1,1\n1\n", "line 3 has 1 fields and the header has 2"),
        ("prompt,output\n1,1,1\n", "line 2 has 3 fields and the header has 2"),
        ('prompt,output\n1,"1\n', "line 2 is not CSV: unexpected end of data"),
        (f"prompt,output\n1,{'x' * 200_000}\n", "line 2 is not CSV: field larger than"),
        ("prompt,output\n1,1\n".encode("utf-16"), "line 1 is not text in UTF-8"),
        (b"prompt,output\n1,1\n1,\xff\n", "line 3 is not text in UTF-8"),
        (b"prompt,output\n1,\x00\n", r"line 2, output: '\x00'"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_what_is_no_trace_is_refused_with_its_line(write, content: str | bytes, message: str):
    path = write(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert (caught.value.field, caught.value.value) == ("trace", str(path))
    assert message in caught.value.message
    assert "\n" not in str(caught.value)
    assert len(caught.value.message) < 250


def test_paths_that_cannot_be_read(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.csv", "a\0b"):
        with pytest.raises(InputError, match="cannot be read: ") as caught:
            read_trace(path, "requests")
        assert (caught.value.field, caught.value.value) == ("requests", os.fspath(path))


def test_a_huge_file_is_refused_without_reading_it_all(tmp_path: Path):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(2**36)  # a hole on disk
    with pytest.raises(InputError, match="larger than 64 MiB"):
        read_trace(path)


def test_ten_thousand_rows_take_well_under_a_fifth_of_a_second(write):
    random = np.random.default_rng(1)
    prompts, outputs = random.integers(1, 9000, 10_000), random.integers(1, 900, 10_000)
    prefixes = (prompts * random.random(10_000)).astype(int)
    lines = [f"{p},{o},{f},0.5" for p, o, f in zip(prompts, outputs, prefixes, strict=True)]
    path = write("prompt,output,prefix,weight\n" + "\n".join(lines))

    def timed() -> tuple[float, Traffic, Traffic]:
        start = time.process_time()
        trace = read_trace(path)
        few = trace.buckets(16)
        return time.process_time() - start, trace, few

    seconds, trace, few = min((timed() for _ in range(5)), key=lambda found: found[0])
    assert seconds < 0.2
    assert np.array_equal(trace.prompt, prompts)
    assert np.array_equal(trace.output, outputs)
    assert np.array_equal(trace.prefix, prefixes)
    assert few.mean_prompt == pytest.approx(prompts.mean(), rel=1e-9)
