"""`python -m partita` in a process of its own: exit codes, what it imports, and text as it is generated."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import partita

NOT_FOR_PLANNING = {"jax", "jaxlib", "gguf", "tokenizers", "jinja2"}


def python(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
    """Runs this Python with the package where these tests found it, on CPU."""
    path = os.pathsep.join([str(Path(partita.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def imported(times: str) -> set[str]:
    """Top-level packages in what `-X importtime` wrote."""
    lines = [line for line in times.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "palm-540b", "--on", "tpu-v4:4x4x4", "--batch", "64", "--json"),
        ("predict", "palm-540b", "--on", "tpu-v4:4x4x4", "--phase", "decode", "--batch", "64"),
    ],
    ids=["plan", "predict"],
)
def test_planning_imports_neither_jax_nor_what_reads_checkpoints(arguments: tuple[str, ...]):
    done = python("-X", "importtime", "-m", "partita", *arguments)
    assert done.returncode == 0, done.stderr
    assert "ws2d" in done.stdout
    found = imported(done.stderr)
    assert {"partita", "numpy"} <= found
    assert not found & NOT_FOR_PLANNING


def test_wrong_input_exits_with_2_and_one_line_even_where_it_is_no_text():
    done = python("-m", "partita", "plan", b"palm-\xff", "--on", "tpu-v4:4x4x4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: model: palm-\\udcff: unknown; did you mean palm-8b?")
    assert done.stderr.count("\n") == 1
    done = python("-m", "partita", "plan", b"palm-\xff", "--on", "tpu-v4:4x4x4", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["error"]["value"] == "palm-\udcff"


def test_a_real_model_speaks_on_two_devices():
    run = ("smollm2-135m", "--prompt", "Once upon a time", "--devices", "2", "--max-tokens", "7")
    done = python("-m", "partita", "generate", *run)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Once upon a time, the city of Nova Haven")


def test_a_reader_that_goes_away_is_no_error_to_report():
    code = "import sys, subprocess as s; p = s.Popen([sys.executable, '-m', 'partita', 'models', '--json'], "
    code += "stdout=s.PIPE, stderr=s.PIPE); p.stdout.close(); print(p.stderr.read().decode(), p.wait())"
    done = python("-c", code)
    assert done.stdout.strip() == "1"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize(
    "arguments", [["models", "--json"], ["plan", "none-such", "--on", "h100:1x1", "--json"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_does_not_fit_is_one_line(
    arguments: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code = "import sys, subprocess as s; p = s.run([sys.executable, '-m', 'partita', *sys.argv[1:]], "
    code += "stdout=open('/dev/full', 'w'), stderr=s.PIPE); print(p.stderr.decode().strip(), p.returncode)"
    done = python("-c", code, *arguments)
    assert done.stdout.strip() == "error: No space left on device 1"


def test_a_thread_that_is_still_busy_is_not_waited_for():
    """As one that compiles what the answer turned out not to need."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor; from threading import Event;"
        "ThreadPoolExecutor(1).submit(Event().wait);"
        "from partita.cli.main import main; main(['models', '--json'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)
    assert ran.stderr == ""


def test_a_step_that_is_still_compiled_at_the_end_is_not_waited_for():
    """In a thread of the kind that drafts are compiled in: it takes a minute, and would be heard of."""
    code = """
import jax, sys
from concurrent.futures import ThreadPoolExecutor
from partita.cli.main import main
def slow(x):
    for number in range(150):
        x = jax.lax.sort(jax.numpy.tanh(x @ x.T + number) * jax.numpy.sin(x), dimension=number % 2)
    return x
traced = jax.jit(slow).lower(jax.ShapeDtypeStruct((16, 16), "float32"))
pool = ThreadPoolExecutor(1)
pool.submit(lambda: (traced.compile(), print("compiled")))
pool.shutdown(wait=False)
main(sys.argv[1:])
"""
    done = python("-c", code, "models", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
