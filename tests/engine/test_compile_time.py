"""How long compiling takes, told by JAX: neither a cache nor a step that stalls changes it."""

from __future__ import annotations

import threading
import time

import pytest
from jax import monitoring
from tests.engine import asking

from partita.engine.compile_time import compiling
from partita.specs.sampling import Sampling

BACKEND, SAVED = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/compile_time_saved_sec"


def test_a_program_that_was_read_counts_for_what_compiling_it_took():
    with compiling() as found:
        monitoring.record_event_duration_secs(SAVED, 5.75)
        monitoring.record_event_duration_secs(BACKEND, 0.25)
        monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_trace_duration", 9.0)
        other = threading.Thread(target=monitoring.record_event_duration_secs, args=(BACKEND, 9.0))
        other.start()
        other.join()
    monitoring.record_event_duration_secs(BACKEND, 9.0)
    assert found.seconds == 6.0


def test_a_stall_of_a_step_is_no_compiling(monkeypatch: pytest.MonkeyPatch):
    engine = asking.engine()
    asked = Sampling(max_tokens=2, ignore_eos=True)
    engine.complete([[1, 2, 3]], asked)
    took = engine.programs.drafts.compile_seconds
    assert took > 0
    decode, waited = engine.programs.decode, took + 0.2

    def stalls(layout):
        time.sleep(waited)
        return decode(layout)

    monkeypatch.setattr(engine.programs, "decode", stalls)
    engine.complete([[1, 2, 3]], asked)
    assert engine.programs.drafts.compile_seconds == took
