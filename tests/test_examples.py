"""The examples run as written, and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.checkpoints import tiny_folder

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")


PLANNED = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
assert not any(name.split(".")[0] == "jax" for name in sys.modules), "planning needs no JAX"
"""


def shown(*arguments: str | Path) -> str:
    """What Python prints with these arguments, in a process of its own, which compiles in a hurry."""
    hurry = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=hurry)
    assert done.returncode == 0, done.stderr
    return done.stdout


def planned(name: str) -> str:
    """What a script prints that must not import JAX; the page quotes all of it."""
    text = shown("-c", PLANNED, EXAMPLES / name)
    assert f"\n```\n{text}```\n" in PAGE
    return text


def test_every_example_is_tested_and_documented():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"compare_clusters.py", "own_cluster.py", "two_layouts.py", "price_a_layout.py"}
    assert set(re.findall(r'^--8<-- "examples/(.+)"$', PAGE, re.M)) == names


def test_two_clusters_are_compared():
    text = planned("compare_clusters.py")
    assert re.findall(r"^(\S+): (\d+) chips", text, re.M) == [("h100:2x8", "16"), ("tpu-v5e:8x8", "64")]
    limits = [float(ms) for ms in re.findall(r"TPOT at least ([\d.]+) ms", text)]
    assert len(limits) == 2
    assert all(0 < ms <= 50 for ms in limits)


def test_a_plan_on_a_cluster_of_your_own_has_bounds_alone():
    text = planned("own_cluster.py")
    assert text.count("estimate: None") == 2
    held = re.findall(r"([\d.]+) of 57.6 GB per chip", text)  # nine tenths of 64
    assert len(held) == 2
    assert all(0 < float(size) <= 57.6 for size in held)


def test_two_layouts_write_the_same_tokens(tmp_path: Path):
    config, tensors = tiny_folder.CONFIGS["llama"][0], tiny_folder.stored("llama")[1]
    folder = tiny_folder.write(tmp_path / "tiny", config, tensors)
    assert shown(EXAMPLES / "two_layouts.py", folder).splitlines()[-1] == "same tokens"


def test_a_layout_is_priced_by_hand():
    text = planned("price_a_layout.py")
    assert "ws2d/batch: bound 9.13 ms a step" in text  # as docs/accuracy.md quotes it
    assert len(re.findall(r"[\d,]+ bytes in [\d,]+ messages per chip", text)) >= 4
    assert "estimate 28.8 ms" in text
