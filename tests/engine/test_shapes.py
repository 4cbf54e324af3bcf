"""One closed set of shapes: whatever the mix of requests within a capacity, few programs are compiled."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from tests.engine.asking import engine, prompt, request

from partita.engine.engine import EngineOptions
from partita.engine.memory import Asked
from partita.engine.shapes import Capacity
from partita.errors import InputError
from partita.specs.sampling import Sampling

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The names of what is compiled, of steps and of all else."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == COMPILED:
            found.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_any_mix_of_requests_compiles_less_than_a_dozen_programs(compiled: list[str]):
    runs, random = (
        engine(options=EngineOptions(capacity=Capacity(8, 64), draft="off")),
        np.random.default_rng(5),
    )
    compiled.clear()

    def ask_fifty() -> None:
        for _ in range(50):
            asked, samples = [], int(random.choice([1, 1, 2, 8]))
            while samples > 0:
                kind = random.choice(["greedy", "sampled", "wide", "full"])
                ask = request(random, str(kind), n=int(random.integers(1, min(samples, 3) + 1)))
                ids = prompt(random, int(random.integers(1, 64 - ask.max_tokens)))
                asked.append((ids, ask))
                samples -= ask.n
            runs.complete([ids for ids, _ in asked], [ask for _, ask in asked])

    ask_fifty()
    assert 5 < len(compiled) < 12
    assert runs.programs.traced == len(compiled)
    compiled.clear()
    ask_fifty()
    assert not compiled


def test_after_warming_nothing_is_compiled(compiled: list[str]):
    runs, random = (
        engine(options=EngineOptions(capacity=Capacity(4, 48), draft="off")),
        np.random.default_rng(6),
    )
    runs.warm()
    assert 5 < runs.programs.traced < 12
    compiled.clear()
    for prompts, samples, kind in [(1, 1, "greedy"), (1, 3, "full"), (4, 1, "wide"), (2, 2, "sampled")]:
        ask = request(random, kind, n=samples)
        runs.complete([prompt(random) for _ in range(prompts)], ask)
    assert not compiled


def test_drafts_add_a_step_for_each_number_of_slots_and_its_draws(compiled: list[str]):
    """Here of one number of slots, and two of the four kinds of draws."""
    runs = engine(options=EngineOptions(capacity=Capacity(1, 48), draft="ngram"))

    def ask_both() -> int:
        compiled.clear()
        for logprobs in (None, 1):  # greedy text of a tiny model repeats itself
            ask = Sampling(max_tokens=40, ignore_eos=True, logprobs=logprobs)
            runs.complete([[1, 2, 3]], ask)
        return len(compiled)

    runs.draft = "off"
    assert ask_both() < 12
    runs.draft = "ngram"
    assert ask_both() == 1 + 2
    assert ask_both() == 0


def test_warming_says_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch):
    runs = engine(options=EngineOptions(capacity=Capacity(1, 48)))

    def broken(*_: object) -> None:
        raise ValueError("no such program")

    monkeypatch.setattr(runs.programs.draws, "any", broken)
    with pytest.raises(ValueError, match="no such program"):
        runs.warm()


@pytest.mark.parametrize("tokens", [5, 300])
def test_what_is_expected_is_compiled_while_weights_are_placed(compiled: list[str], tokens: int):
    """Within the capacity and beyond it: a prompt's step, its way into a slot, a decode step and a draw."""
    random = np.random.default_rng(6)
    asked = request(random, "full", max_tokens=3, stop=[], stop_token_ids=[])
    options = EngineOptions(capacity=Capacity(4, 200), first=Asked((tokens,), (asked,)))
    runs = engine(options=options)
    runs.complete([prompt(random, tokens)], asked)
    assert len(compiled) == runs.programs.traced == 4


@pytest.mark.parametrize(("sequences", "tokens", "field"), [(0, 8, "sequences"), (8, True, "tokens")])
def test_a_capacity_is_of_whole_numbers(sequences: int, tokens: int, field: str):
    with pytest.raises(InputError, match=rf"capacity\.{field}: .* whole number of at least 1"):
        Capacity(sequences, tokens)
