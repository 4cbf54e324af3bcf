"""`verify`: right predictions are exact, and a wrong one, by a byte or a message or an axis, is caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import jax
import pytest
from tests.combinations import tiny_model
from tests.sizes import some

from partita.cost.ledger import Entry, Ledger
from partita.cost.step import StepOptions, StepShape, price_step
from partita.engine.steps import Programs
from partita.measure.counts import Counts, predicted, sent_bytes
from partita.measure.launches import Launch, first_draw, ints
from partita.measure.verify import Check, check_decode, check_prefill, checked, verify
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.specs.formats import Formats
from partita.specs.workload import Workload

MODEL = tiny_model("GQA", block="parallel")
MESH = Mesh.of((2, 2, 2))
PREFILL, DECODE = parse_layout("wg-xy/heads", "xyz"), parse_layout("ws2d/batch", "xyz")
STORAGE = plan_storage(MODEL, MESH, DECODE, PREFILL)
LAYOUT = resolve(DECODE, STORAGE, MESH, batch=8, queries=1)
F32 = Formats(weights="f32", activations="f32", kv="f32")
BF16 = Formats(weights="bf16", activations="bf16", kv="bf16")
PAIR = [(PREFILL, DECODE)]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return list(verify(MODEL, MESH, PAIR, F32, Workload(prompt=9, output=1, batch=8, context=16)))


@pytest.fixture(scope="module")
def decode(checks: list[Check]) -> Check:
    assert checks[2].exact
    return checks[2]


def ledger(layout: Layout = LAYOUT, batch: int = 8, context: int = 16) -> Ledger:
    return price_step(MODEL, layout, MESH.size, F32, StepShape(batch, 1, context)).ledger


def test_prefill_switch_and_decode_are_exact(checks: list[Check]):
    assert [(check.phase, check.layout) for check in checks] == [
        ("prefill", "wg-xy/heads"),
        ("switch", "wg-xy/heads -> ws2d/batch"),
        ("decode", "ws2d/batch"),
    ]
    for check in checks:
        assert check.exact
        assert check.compiled is not None
        assert check.predicted.sent_bytes
    prefill, _, decode = checks
    assert prefill.predicted.flops > decode.predicted.flops > 0
    assert {kind for kind, _ in decode.predicted.messages} >= {"all-gather", "reduce-scatter", "all-to-all"}


def test_bfloat16_is_counted_in_the_trace_alone(checks: list[Check]):
    scattered = [[check.predicted.by_kind().get("reduce-scatter", 0) for check in checks]]
    for formats in (BF16, BF16.model_copy(update={"reduce": "bf16"})):
        halves = list(verify(MODEL, MESH, PAIR, formats, Workload(prompt=9, output=1, batch=8, context=16)))
        assert all(check.exact and check.compiled is None for check in halves)
        for half, full in zip(halves, checks, strict=True):
            assert half.predicted.messages == full.predicted.messages
            for key, sent in half.predicted.sent_bytes.items():
                assert full.predicted.sent_bytes[key] / 2 <= sent <= full.predicted.sent_bytes[key]
        weights = "all-gather", "x"  # what moves over x alone in the gathered prefill
        assert halves[0].predicted.sent_bytes[weights] == checks[0].predicted.sent_bytes[weights] / 2 > 0
        scattered.append([check.predicted.by_kind().get("reduce-scatter", 0) for check in halves])
    for full, sums_in_f32, sums_in_bf16 in zip(*(phases[::2] for phases in scattered), strict=True):
        assert full > sums_in_f32 > sums_in_bf16 > full / 2  # the logits' sum is always float32


def wrong(entry: Entry) -> Iterator[Entry]:
    """The entry, off in one respect."""
    yield replace(entry, sent_bytes=entry.sent_bytes + 1)
    yield replace(entry, sent_bytes=entry.sent_bytes - 1)
    yield replace(entry, messages=entry.messages + 1)
    yield replace(entry, messages=0)
    yield replace(entry, repeat=entry.repeat + 1)
    yield replace(entry, kind="all-reduce" if entry.kind != "all-reduce" else "all-to-all")
    yield replace(entry, axes={"x": "y", "y": "z", "z": "x", "xy": "yz"}.get(entry.axes, "x"))


def test_every_entry_of_the_ledger_is_held_to_its_word(decode: Check):
    entries = ledger().entries
    assert predicted(ledger(), MESH.size) == decode.predicted
    collectives = [i for i, entry in enumerate(entries) if entry.messages]
    assert len(collectives) > 10
    for i in collectives:
        for other in wrong(entries[i]):
            tampered = Ledger([*entries[:i], other, *entries[i + 1 :]])
            assert not replace(decode, predicted=predicted(tampered, MESH.size)).exact, (entries[i], other)
    for i, entry in enumerate(entries):
        if entry.flops:
            tampered = Ledger([*entries[:i], replace(entry, flops=entry.flops + 2), *entries[i + 1 :]])
            assert not replace(decode, predicted=predicted(tampered, MESH.size)).exact, entry


@pytest.mark.parametrize("layout", ["ws1d/batch", "ws2d/heads", "wg-x/batch", "x=f,y=f,z=e/batch"])
def test_the_prediction_of_another_layout_is_not_exact(decode: Check, layout: str):
    other = resolve(parse_layout(layout, "xyz"), STORAGE, MESH, batch=8, queries=1)
    assert other != LAYOUT
    assert not replace(decode, predicted=predicted(ledger(other), MESH.size)).exact


def test_the_prediction_of_other_sizes_is_not_exact(decode: Check):
    assert not replace(decode, predicted=predicted(ledger(batch=16), MESH.size)).exact
    # a longer context moves nothing more, but its dots are longer
    longer = predicted(ledger(context=32), MESH.size)
    assert longer.same_collectives(decode.predicted)
    assert not replace(decode, predicted=longer).exact


def test_the_program_of_another_layout_is_not_exact(monkeypatch: pytest.MonkeyPatch):
    """The prediction is right for the layout asked for; the program that runs is another's."""
    programs = Programs(MODEL, MESH, STORAGE, F32)
    other = resolve(parse_layout("wg-x/batch", "xyz"), STORAGE, MESH, batch=8, queries=1)
    assert other.cache == LAYOUT.cache
    assert check_decode(programs, LAYOUT, 8, 16, compiled=False).exact
    right = programs.decode
    monkeypatch.setattr(programs, "decode", lambda layout: right(other))
    assert not check_decode(programs, LAYOUT, 8, 16, compiled=False).exact


def test_what_the_compiler_adds_or_drops_is_caught(decode: Check):
    assert decode.compiled is not None
    for key in decode.compiled.messages:
        added, dropped = copy(decode.compiled), copy(decode.compiled)
        added.messages[key] += 1
        del dropped.messages[key], dropped.sent_bytes[key]
        assert not replace(decode, compiled=added).exact
        assert not replace(decode, compiled=dropped).exact
    assert replace(decode, compiled=copy(decode.compiled)).exact


def copy(counts: Counts) -> Counts:
    return Counts(counts.sent_bytes.copy(), counts.messages.copy(), counts.flops)


def test_sizes_are_padded_before_they_are_checked():
    sizes = Workload(prompt=7, output=1, batch=3, context=8)
    checks = list(verify(MODEL, MESH, [(PREFILL, DECODE)], F32, sizes, compiled=False))
    assert all(check.exact for check in checks)
    programs = Programs(MODEL, MESH, STORAGE, F32)
    layout = resolve(PREFILL, STORAGE, MESH, batch=1, queries=8)
    assert layout.tokens_l
    assert check_prefill(programs, layout, layout, 1, 8, compiled=True).exact


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-gather", Fraction(300)),
        ("reduce-scatter", Fraction(75)),
        ("all-to-all", Fraction(75)),
        ("all-reduce", Fraction(150)),
        ("collective-permute", Fraction(100)),
    ],
)
def test_bytes_sent_by_each_of_four_chips_that_hold_a_hundred(kind: str, sent: Fraction):
    assert sent_bytes(kind, 100, 4) == sent
    assert sent_bytes(kind, 100, 3) == {
        "all-gather": 200,
        "all-reduce": Fraction(400, 3),
        "collective-permute": 100,
    }.get(kind, Fraction(200, 3))


def test_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="broadcast"):
        sent_bytes("broadcast", 100, 4)


def test_totals_by_kind():
    counts = Counts()
    counts.add("all-gather", "yx", Fraction(12), 2)
    counts.add("all-gather", "z", Fraction(1, 3), 1)
    counts.add("all-reduce", "z", Fraction(8), 1)
    assert counts.messages == {("all-gather", "xy"): 2, ("all-gather", "z"): 1, ("all-reduce", "z"): 1}
    assert counts.by_kind() == {"all-gather": 24 + 1 / 3, "all-reduce": 8}


DRAFTED = 8


def draft_launches(programs: Programs, layout: Layout, batch: int, context: int) -> tuple[Launch, ...]:
    """`DRAFTED` tokens of each sequence verified on a cache of `context` tokens, these included."""
    cache, given = programs.cache(layout, batch, context, DRAFTED), (ints(batch, DRAFTED), *[ints(batch)] * 2)
    one = first_draw(programs, layout, layout, batch, context, DRAFTED)
    last, _, settings, _, known, output = one.arguments
    logits = jax.ShapeDtypeStruct((batch, DRAFTED, last.shape[2]), last.dtype, sharding=last.sharding)
    decode, verify = programs.drafts.decode(layout), programs.drafts.verify(layout, "greedy")
    return (
        Launch(decode, (programs.parameters(), cache, *given)),
        Launch(verify, (logits, *given, settings, known, output), one.beside),
    )


@pytest.mark.parametrize(
    ("layout", "batch", "changes"),
    some(
        3,
        [
            ("ws2d/batch", 8, {}),
            ("ws1d/context", 4, {"window": 5, "global_period": 2, "layers": 3}),
            ("wg-xy/heads", 8, {"window": 12}),
            ("wg-xyz/batch", 8, {}),
            ("ws2d/context", 1, {"window": 5, "global_period": 2, "layers": 3}),
            ("x=replica,y=f,z=e/x=batch,y=heads,z=heads", 6, {}),
        ],
    ),
)
def test_steps_that_verify_drafts_are_exact(layout: str, batch: int, changes: dict[str, int]):
    """Decode of several tokens each, and their draws, by the trace and the compiled program."""
    model, roles = MODEL.model_copy(update=changes), parse_layout(layout, "xyz")
    storage = plan_storage(model, MESH, roles, roles)
    programs, found = Programs(model, MESH, storage, F32), resolve(roles, storage, MESH, batch, 1)
    step = price_step(
        model,
        found,
        MESH.size,
        F32,
        StepShape(batch, DRAFTED, 16),
        StepOptions(verifies=True, run_options=programs.run_options),
    )
    launches = draft_launches(programs, found, batch, 16)
    check = checked(programs, "decode", layout, launches, step.ledger, True, int(step.memory_bytes))
    assert check.exact
    assert check.memory is not None
    assert check.memory[0] > 0
    one = check_decode(programs, found, batch, 16, compiled=False)
    # eight tokens for one, and in windows rings that have room for them
    assert 6 < check.predicted.flops / one.predicted.flops < 9
