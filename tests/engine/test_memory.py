"""Memory is compared with what there is before it is taken: what is refused, what is said, what lives on."""

from __future__ import annotations

import gc
import re
import tracemalloc
import weakref
from typing import Any

import jax
import numpy as np
import pytest
from tests.engine import asking

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine import free_memory
from partita.engine.drafting import WIDTH
from partita.engine.engine import Engine, EngineOptions
from partita.engine.memory import Asked, AskedLogits, Memory, copy_bytes
from partita.engine.parameters import place
from partita.engine.slots import Slots
from partita.engine.smaller import Words
from partita.engine.steps import Programs
from partita.errors import InputError, out_of_memory
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats
from partita.specs.model import Model
from partita.specs.parameters import all_parameters
from partita.specs.sampling import Sampling

F32 = Formats.all_in("f32")
WIDE = Model(name="wide", layers=2, d_model=64, d_ff=96, heads=4, kv_heads=2, head_dim=16, vocabulary=96)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Says how much the machine has free from now on; no number for unknown."""

    def has(number: int | None) -> None:
        monkeypatch.setattr(free_memory, "host_free_bytes", lambda: number)

    has(None)
    return has


def test_a_request_that_is_too_large_is_refused_and_the_next_one_is_served(free: Any):
    engine = asking.engine()
    usual = Sampling(max_tokens=4, ignore_eos=True)
    expected = engine.complete([[1, 2]], usual)
    free(400_000_000)
    with pytest.raises(InputError, match=r"weights .* kv .* activations .* of 375 MB free") as error:
        engine.complete([[1, 2]], Sampling(max_tokens=8000, n=1024, temperature=1))
    assert error.value.field == "memory"
    assert "\n" not in str(error.value)
    assert engine.complete([[1, 2]], usual) == expected


def test_the_changes_that_are_named_fit_and_one_more_does_not(free: Any):
    engine = asking.engine()
    free(200_000_000)
    large = Asked((2,), (Sampling(max_tokens=2000, n=1024, temperature=1),))
    with pytest.raises(InputError) as error:
        engine.memory.check(large)
    named = re.search(r"smallest change that fits: n=(\d+) or max_tokens=(\d+);", str(error.value))
    assert named
    for field, most in zip(("n", "max_tokens"), map(int, named.groups()), strict=True):
        engine.memory.check(large.at_most(field, most))
        with pytest.raises(InputError):
            engine.memory.check(large.at_most(field, most + 1))


def test_the_step_of_drafts_is_part_of_the_account():
    """Its logits of every token it reads, and its program, where drafts are on; a token's alone where not."""
    asked = Asked((2,), (Sampling(max_tokens=600, n=64),))
    drafting, plain = (
        dict(load(checkpoint=MemoryCheckpoint, draft=draft).memory.needed((), asked))
        for draft in ("auto", "off")
    )
    more = 4 * 64 * (WIDTH - 1) * WIDE.vocabulary
    assert drafting["activations"] >= plain["activations"] + more
    assert plain["programs"] < drafting["programs"] < 1.5 * plain["programs"]
    assert (drafting["weights"], drafting["kv"]) == (plain["weights"], plain["kv"])


@pytest.mark.parametrize("beyond", [1708 / 1621, 1822 / 1742])
def test_what_is_left_alone_covers_what_was_measured_beyond_the_account(beyond: float, free: Any):
    """Of all that fits by the account, what it takes at most is free. Of 64 samples with an int8 cache, in
    an earlier version and in this one (docs/speed.md)."""
    memory = asking.engine().memory
    asked = Asked((2,), (Sampling(max_tokens=2000, n=64, temperature=1),))
    needed = sum(memory.needed((), asked).values())
    free(int(needed * beyond) - 1)
    with pytest.raises(InputError, match="memory"):
        memory.check(asked)
    free(2 * needed)
    memory.check(asked)


def test_fewer_prompts_at_once(free: Any):
    engine = asking.engine()
    free(180_000_000)
    with pytest.raises(InputError, match=r"fits: max_tokens=\d+ or prompts in batches of \d+; force"):
        engine.complete([[1, 2]] * 64, Sampling(max_tokens=3000))


class Unread(MemoryCheckpoint):
    """A checkpoint of which nothing may be read."""

    def read(self, name: str, index: Any = ()) -> np.ndarray:
        raise AssertionError(f"{name} was read")


def load(*, checkpoint: type[MemoryCheckpoint] = Unread, **options: Any) -> Engine:
    mesh, roles = Mesh("x", (1,)), parse_layout("ws2d/heads", "x")
    held = checkpoint(WIDE, random_parameters(WIDE, seed=0))
    return Engine(held, mesh, roles, roles, options=EngineOptions(**options))


def test_weights_are_refused_before_any_is_read(free: Any):
    size = 4 * WIDE.parameters
    free(size)
    with pytest.raises(InputError, match=r"wide needs .* dtype=.bf16.; force=True goes on") as error:
        load()
    assert error.value.field == "memory"
    free(size // 100)
    with pytest.raises(InputError, match="neither int8 nor a smaller request would fit"):
        load()
    assert load(checkpoint=MemoryCheckpoint, force=True).parameters


def test_weights_are_refused_for_what_they_are_loaded_for(free: Any):
    """They would fit; the prompt beside them does only in chunks, the samples only if they are fewer."""
    free(2_000_000_000)
    with pytest.raises(InputError, match=r"smallest change that fits: chunk=\d+;"):
        load(first=Asked((8000,), (Sampling(max_tokens=10),)))
    with pytest.raises(InputError, match=r"smallest change that fits: n=\d+ or max_tokens=\d+;"):
        load(first=Asked((3,), (Sampling(max_tokens=90_000, n=1000, temperature=1),)))


def test_of_a_text_whose_logits_are_kept_fewer_tokens_are_offered(free: Any):
    """Each window begins with a token that is not the text's. What is named fits, and it is near the most."""
    words: Words = {"tokens": "--tokens {}"}
    free(200_000_000)
    with pytest.raises(InputError, match=r"smallest change that fits: --tokens (\d+)$") as error:
        load(first=AskedLogits(512, 500_000), words=words)
    tokens = int(str(error.value).rpartition(" ")[2])
    room = 512 - 1

    def windowed(tokens: int) -> AskedLogits:
        return AskedLogits(512, tokens + -(-tokens // room))

    assert load(checkpoint=MemoryCheckpoint, first=windowed(tokens), words=words).parameters
    with pytest.raises(InputError, match="memory"):
        load(first=windowed(tokens + 1), words=words)


def test_logits_of_fewer_or_shorter_prompts_are_offered(free: Any):
    engine = load(checkpoint=MemoryCheckpoint)
    free(200_000_000)
    with pytest.raises(
        InputError, match=r"fits: prompts in batches of \d+ or prompts of up to \d+ tokens; f"
    ):
        engine.logits([[1] * 1000] * 64)


def test_nothing_is_compared_where_nothing_is_known(free: Any):
    asking.engine().memory.check(Asked((2,), (Sampling(max_tokens=10**9),)))


@pytest.mark.parametrize("error", [MemoryError("no"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no")])
def test_what_is_short_all_the_same_is_one_line_and_the_engine_lives(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    """Also where a step has taken a donated cache with it."""
    engine, usual = asking.engine(), Sampling(max_tokens=4, ignore_eos=True)
    expected = engine.complete([[1, 2]], usual)
    step, failed = Slots.step, []

    def short(slots: Slots) -> Any:
        failed.append(weakref.ref(slots))
        step(slots)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "step", short)
        with pytest.raises(InputError, match="more than there is") as found:
            engine.complete([[1, 2]], usual)
    gc.collect()
    assert found.value
    assert failed[0]() is None  # an error that is kept keeps no cache
    assert engine.complete([[1, 2]], usual) == expected


def test_the_size_that_jax_names_is_said():
    text = "RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes."
    assert "1234 bytes" in str(out_of_memory(RuntimeError(text)))
    assert out_of_memory(RuntimeError("INTERNAL: something else")) is None


def test_devices_with_memory_of_their_own_are_looked_at_each(free: Any, monkeypatch: pytest.MonkeyPatch):
    mesh, roles = Mesh("x", (2,)), parse_layout("ws1d/heads", "x")
    programs = Programs(WIDE, mesh, plan_storage(WIDE, mesh, roles, roles), F32)
    monkeypatch.setattr(Programs, "on_cpu", property(lambda self: False))
    memory, held = Memory(programs), 0
    for target in programs.parameters().values():
        held += int(np.prod(target.sharding.shard_shape(target.shape))) * target.dtype.itemsize
    monkeypatch.setattr(free_memory, "device_free_bytes", lambda devices: held)
    memory.check_load(())
    monkeypatch.setattr(free_memory, "device_free_bytes", lambda devices: held - 1)
    with pytest.raises(InputError, match="free on each device"):
        memory.check_load(())
    monkeypatch.setattr(free_memory, "device_free_bytes", lambda devices: None)
    memory.check_load(())
    free(1000)  # the host has no room for a copy
    with pytest.raises(InputError, match=r"loading .* free on this machine"):
        memory.check_load(())


@pytest.mark.parametrize(
    "formats", [F32, Formats.all_in("bf16"), Formats(weights="int8", activations="f32")], ids=str
)
def test_copies_while_a_parameter_is_placed(formats: Formats):
    """What NumPy holds at most; what JAX makes of it is as large as the parameter, and not seen here."""
    wide = WIDE.model_copy(update={"layers": 1, "d_model": 512, "d_ff": 1024, "vocabulary": 4096})
    mesh, roles = Mesh("x", (1,)), parse_layout("ws2d/heads", "x")
    programs = Programs(wide, mesh, plan_storage(wide, mesh, roles, roles), formats)
    stored = MemoryCheckpoint(wide, random_parameters(wide, seed=0))
    rows, targets = all_parameters(wide), programs.parameters()
    said = 0
    for name, row in rows.items():
        own = targets[name].size * targets[name].dtype.itemsize
        said = max(said, copy_bytes(row, own, formats.weights == "int8" and row.quantisable) - own)
    tracemalloc.start()
    try:
        place(programs, stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.05 * said


@pytest.mark.parametrize("formats", [F32, Formats.all_in("bf16"), Formats(weights="f32", kv="int8")], ids=str)
@pytest.mark.parametrize("layout", ["ws2d/batch", "ws2d/heads"])
def test_prompts_come_into_slots_in_place(layout: str, formats: Formats):
    """Beside the cache of 32 slots, donated, there is never another of more than a few slots."""
    mesh = Mesh("xy", (2, 2))
    roles = parse_layout(layout, mesh.axes)
    programs = Programs(WIDE, mesh, plan_storage(WIDE, mesh, roles, roles), formats)
    prefill = resolve(roles, programs.storage, mesh, 4, 16)
    decode = resolve(roles, programs.storage, mesh, 32, 1)
    cache = programs.cache(decode, 32, 256)
    ints = jax.ShapeDtypeStruct((32,), np.int32)
    run: Any = programs.insert(prefill, decode, 256)
    prompts = programs.cache(prefill, 4, 16), jax.ShapeDtypeStruct((4,), np.int32)
    given = (cache, *prompts, programs.last_logits(prefill, 4), ints, ints, ints)
    found = run.lower(*given).compile().memory_analysis()
    size = sum(
        int(np.prod(t.sharding.shard_shape(t.shape))) * t.dtype.itemsize for t in jax.tree.leaves(cache)
    )
    assert found.alias_size_in_bytes == size
    assert found.temp_size_in_bytes < size / 2
