"""Predictions as tables: what a reader is told, with its units."""

import pytest
from tests.planner.pairs import pair_of, phase_of
from tests.planner.settings import palm, setting
from tests.report.shown import text_of

from partita.report import tables
from partita.sharding.roles import parse_layout
from partita.specs import format_seconds

SMALL = setting("palm-8b", "tpu-v4:2x2x2", prompt=512, output=16, batch=32)


def row(text: str, name: str) -> list[str]:
    """The cells of a row, its name left out; two spaces part them."""
    line = next(line for line in text.splitlines() if line.startswith(name))
    return [cell.strip() for cell in line.removeprefix(name).split("  ") if cell.strip()]


def test_memory_is_shown_by_part_and_adds_up():
    decode = phase_of(SMALL, "decode", "ws1d/batch")
    memory = decode.memory_bytes
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "activations", "runtime"))
    # on 8 chips: 8.63B parameters, and 32 sequences of 528 tokens with 32 x 2 x 256 elements, of 2 bytes
    # for each of 32 tokens 32,016 logits and 4096 numbers they come from, 512 of the residual, and two
    # whole numbers; for 4 tokens 256 sines and cosines
    activations = 32 * (4 * 32_016 + 2 * 4096 + 2 * 512 + 2 * 4) + 4 * 4 * 256
    assert memory["activations"] == activations
    parts = "weights 2.16 GB, kv 69.2 MB, activations 4.4 MB, runtime 1.34 GB"
    assert row(text_of(tables.predictions([decode])), "memory per chip") == [f"3.57 GB of 34.4 GB: {parts}"]


@pytest.mark.parametrize(("model", "shown"), [("smollm2-135m", True), ("palm-8b", False)])
def test_padding_is_shown_where_there_is_any(model: str, shown: bool):
    given = setting(model, "tpu-v4:2x2x2", prompt=512, output=16, batch=8)
    found = phase_of(given, "decode", "ws1d/heads")
    text = text_of(tables.predictions([found]))
    assert ("heads 9 -> " in text) == ("parameters more" in text) == shown
    assert all(f"{dim} {sizes['from']} -> {sizes['to']}" in text for dim, sizes in found.padding.items())


def test_each_phase_has_a_column_and_every_row_both():
    pair = pair_of(SMALL, "wg-x/heads", "ws2d/batch")
    found = [pair.prefill, pair.decode]
    text = text_of(tables.predictions(found))
    assert row(text, "layout") == ["wg-x/heads", "ws2d/batch"]
    assert row(text, "batch") == ["32", "32"]
    assert row(text, "tokens a step") == [f"{32 * 512:,}", "32"]
    assert row(text, "step, bound") == [format_seconds(p.step_seconds) for p in found]
    for absent in ("stages", "waiting for other stages", "prompt  "):
        assert absent not in text


def test_an_estimate_stands_beside_the_bound_and_neither_is_the_other():
    found = [phase_of(SMALL, phase, "ws2d/batch") for phase in ("prefill", "decode")]
    text = text_of(tables.predictions(found))
    mfu, cost = row(text, "MFU (2N a token), estimated"), row(text, "chip-ms per token, estimated")
    for p, steps, mine, costs in zip(found, row(text, "step, estimated"), mfu, cost, strict=True):
        assert p.estimate is not None
        assert p.estimate.step_seconds > p.step_seconds
        assert steps.startswith(f"{format_seconds(p.estimate.step_seconds)} (")
        tokens, chips = p.tokens_per_step, 8
        done, ideal = 2 * SMALL.model.parameters * tokens, chips * 275e12
        shares = [done / (ideal * seconds) for seconds in (p.estimate.step_seconds, p.step_seconds)]
        assert mine == f"{shares[0]:.1%} (at most {shares[1]:.1%})"
        spent = [1e3 * chips * seconds / tokens for seconds in (p.estimate.step_seconds, p.step_seconds)]
        assert costs == f"{spent[0]:.3g} (at least {spent[1]:.3g})"


def test_without_a_profile_there_are_bounds_and_no_word_of_estimates():
    given = setting("palm-8b", "tpu-v5p:2x2x2", prompt=512, output=16, batch=32)
    found = phase_of(given, "decode", "ws2d/batch")
    assert found.estimate is None
    text = text_of(tables.predictions([found]))
    assert "estimate" not in text
    share = 2 * given.model.parameters * 32 / (8 * 459e12 * found.step_seconds)
    assert row(text, "MFU (2N a token), at most") == [f"{share:.1%}"]
    assert row(text, "chip-ms per token, at least") == [f"{1e3 * 8 * found.step_seconds / 32:.3g}"]


@pytest.mark.parametrize(
    ("layout", "splits"),
    [
        ("ws2d/batch", "batch over xyz"),
        ("ws2d/heads", "query heads over yzx"),
        ("ws2d/context", "context over xyz"),
        ("ws2d/x=context,y=heads,z=batch", "batch over z, context over x, query heads over y"),
        ("ws2d/x=none,y=none,z=none", "nothing"),
    ],
)
def test_what_attention_splits_is_named_by_dim_and_axes(layout: str, splits: str):
    assert tables.attention_split(phase_of(SMALL, "decode", layout)) == splits


@pytest.mark.parametrize(
    ("binds", "words"),
    [
        ("compute", "compute"),
        ("weights", "weights"),
        ("kv", "KV cache"),
        ("link:x", "links of x"),
        ("link:yz", "links of y, z"),
    ],
)
def test_what_binds_is_in_words(binds: str, words: str):
    assert tables.binding_text(binds) == words


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ("x=e,y=f/batch", ["x=e,y=f/batch"]),
        ("ws2d/x=batch,y=heads", ["ws2d/x=batch,y=heads"]),
        ("x=replica,y=f,z=f/x=batch,y=heads,z=context", ["x=replica,y=f,z=f/", "x=batch,y=heads,z=context"]),
        (
            "x=replica,y=e-gathered,z=f-gathered,w=replica/batch",
            ["x=replica,y=e-gathered,z=f-gathered,", "w=replica/", "batch"],
        ),
    ],
)
def test_a_wide_layout_is_broken_where_it_has_joints(layout: str, lines: list[str]):
    roles = parse_layout(layout, "".join(a for a in "xyzw" if f"{a}=" in layout))
    found = tables.layout_text(roles).plain
    assert found.split("\n") == lines
    assert found.replace("\n", "") == str(roles)


def test_a_cached_prefix_and_chunks_are_said():
    given = palm(batch=4, prompt=2048, prefix=512, chunk=1024)
    text = text_of(tables.predictions([phase_of(given, "prefill", "ws2d/batch")]))
    assert row(text, "prompt") == ["512 of 2,048 tokens cached, 1,536 read in 2 steps"]
