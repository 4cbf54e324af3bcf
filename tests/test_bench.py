"""The benchmarks: what they count, and that failures are said and not counted."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from bench import commands
from bench.peers import rate, serve

SECONDS = 0.05


def test_every_phase_of_an_answered_call_counts_and_a_refused_call_does_not():
    def price(split: int, batch: int, context: int) -> str | None:
        time.sleep(1e-4)
        if split == 2:
            raise MemoryError
        return None if split == 4 else "answer"

    found = rate.measure(price, (1, 2, 4, 8), SECONDS, phases=2, refused=(MemoryError,))
    assert found["configurations"] == pytest.approx(found["calls"], abs=4)  # half the calls, two phases each
    assert found["configurations_per_second"] == pytest.approx(found["configurations"] / found["seconds"])
    assert found["slowest_slice"] <= found["configurations_per_second"] <= found["fastest_slice"]
    assert found["seconds"] >= SECONDS
    assert found["first_answer"] == "answer"


def test_a_peer_that_never_answers_or_breaks_gets_no_rate():
    def refuse(split: int, batch: int, context: int) -> None:
        return None

    def fail(split: int, batch: int, context: int) -> None:
        raise KeyError("broken")

    with pytest.raises(RuntimeError, match="none of the first"):
        rate.measure(refuse, (1,), SECONDS, phases=1)
    with pytest.raises(KeyError):
        rate.measure(fail, (1,), SECONDS, phases=1, refused=(MemoryError,))


def test_no_setting_comes_twice():
    order, one_round = rate.settings((4, 8)), len(rate.BATCHES) * len(rate.CONTEXTS) * 2
    seen = [next(order) for _ in range(2 * one_round)]
    assert len(set(seen)) == len(seen)


def test_a_command_is_timed_with_its_memory_and_a_failed_one_says_why():
    timed = commands.time_command(["--help"], 2, {})
    assert 0 < timed["best_seconds"] <= timed["median_seconds"]
    assert timed["peak_bytes"] > 5e6  # no Python is smaller
    failed = commands.time_command(["plan", "no-such-model", "--on", "h100:1"], 2, {})
    assert "no-such-model" in failed["failed"]
    assert "best_seconds" not in failed


# -- the engine's -------------------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of the folder as its scripts import it."""
    monkeypatch.syspath_prepend(str(Path(commands.__file__).parent))
    return importlib.import_module


CASE = {"phase": "decode", "batch": 8, "tokens": 512}

ENGINE = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from serve import serve

def ready(case):
    if case.batch == 3:
        raise MemoryError("no room for 3")
    if case.batch == 4:
        sys.exit("gave up")
    print("what an engine prints is no answer")
    return lambda: time.sleep(case.batch / 1000)

serve(ready, {"version": "1"})
"""


def test_an_engine_is_timed_and_a_case_that_it_fails_at_is_not_its_end(script, tmp_path: Path):
    served, peers = script("served"), Path(commands.__file__).parent / "peers"
    (tmp_path / "engine.py").write_text(ENGINE)
    engine = served.Served([sys.executable, tmp_path / "engine.py", peers])
    assert engine.about == {"version": "1"}
    took = engine.ask(served.Case("decode", 8, 512), 0.1)
    assert len(took) >= serve.FEWEST
    assert min(took) >= 0.008
    assert sum(took) >= 0.1
    with pytest.raises(served.DidNotRun, match="MemoryError: no room for 3"):
        engine.ask(served.Case("decode", 3, 512), 0.1)
    assert min(engine.ask(served.Case("decode", 2, 512), 0.0)) >= 0.002
    with pytest.raises(served.DidNotRun, match="gave up"):
        engine.ask(served.Case("decode", 4, 512), 0.1)
    engine.close()


def test_an_engine_that_does_not_start_says_why(script, tmp_path: Path):
    served = script("served")
    with pytest.raises(served.DidNotRun, match="No module named 'no_such_peer'"):
        served.Served([sys.executable, "-c", "import no_such_peer"])
    with pytest.raises(served.DidNotRun, match="did not start"):
        served.Served([tmp_path / "no-such-python"])


def test_a_step_takes_what_it_takes_in_the_fastest_visit(script):
    case = serve.Case(**CASE)
    found = script("engine").in_seconds(case, [[0.3, 0.2, 0.9], [0.1, 0.2, 0.1]])
    assert found["step_seconds"] == 0.1
    assert found["slowest_visit_seconds"] == 0.3
    assert found["tokens_per_second"] == pytest.approx(80)
    assert found["steps"] == 6
    assert serve.Case("prefill", 2, 512).new_tokens == 1024


def test_shares_of_memory_and_of_matmuls_are_counted_by_hand(script):
    tables = script("engine_tables")
    decode = {"step_seconds": 0.05, "tokens_per_second": 160.0}
    prefill = {"step_seconds": 2.0, "tokens_per_second": 256.0}
    engine = {
        "weight_bytes": 5e8,
        "cache_bytes": 4,
        "cases": {"decode batch 8": decode, "prefill 512": prefill},
    }
    roofs = {"memory": 5e10, "matmul": 1e11}
    result = {"model": "smollm2-135m", "prompt": 512, "roofs": roofs}
    cached = (
        8 * 512 * 30 * 2 * 3 * 64 * 4
    )  # sequences, positions, layers, keys and values, heads, dims, bytes
    assert tables.share(result, engine, "decode batch 8") == pytest.approx((5e8 + cached) / 0.05 / 5e10)
    layer = 576 * (576 + 384 + 576 + 3 * 1536)
    attention = 2 * 9 * 64 * sum(range(1, 513))
    flops = 2 * (30 * (512 * layer + attention) + 576 * 49152)
    assert tables.share(result, engine, "prefill 512") == pytest.approx(flops / 2.0 / 1e11)
    assert tables.share(result, engine, "decode batch 1") is None


def test_a_peer_whose_python_lacks_its_modules_is_said_to_be_missing(script):
    engine = script("engine")
    asked = engine._arguments(["--peer-python", "/no/such/python"])
    missing = engine.Peer("none", "none.py", ("json", "no_such_peer"), lambda model, file: [])
    assert not engine.has(sys.executable, missing)
    with patch.object(engine, "PEERS", (missing,)):
        found = engine.peer_commands(asked, lambda text: None)
    assert "json and no_such_peer" in str(found["none"])
    with pytest.raises(SystemExit):
        engine._arguments(["--only", "nobody"])
