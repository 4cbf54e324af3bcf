"""Drafts change no token: greedy, drawn and penalised, in every layout, whatever is drafted.

Drafts are the tokens that are written without, up to a wrong one at a random place, so that steps accept
none, some and all of them, and reject keys that stay behind in every cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine import asking
from tests.sizes import some

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.engine.drafting import WIDTH, Drafter, Pace
from partita.engine.engine import Engine, EngineOptions
from partita.engine.generation import Completion
from partita.engine.requests import Sample
from partita.engine.slots import Place, Slots
from partita.sharding import Mesh, parse_layout
from partita.specs import Formats
from partita.specs.sampling import Sampling

ONE, CUBE = Mesh("x", (1,)), Mesh("xyz", (2, 2, 2))
PROMPTS = [[5, 9, 9, 30, 2], [7], list(range(3, 24)), [11, 12, 11, 12, 11, 12]]
LENGTHS = (25, 9, 30, 17)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{}, {}, {}, {}],
    "sampled": [
        {"temperature": 1.3},
        {},
        {"temperature": 0.8, "top_k": 9, "min_p": 0.01},
        {"temperature": 9},
    ],
    "wide": [
        {"temperature": 2.0, "top_p": 0.95},
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.5},
    ],
    "full": [
        {"temperature": 1.5, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "logprobs": 3},
        {"presence_penalty": 1.5, "logit_bias": {7: 2.0}},
        {"temperature": 0.9, "top_k": 200},
        {"frequency_penalty": 2.0, "logprobs": 0},
    ],
}


class Told(Drafter):
    """Drafts what will be written, with a wrong token somewhere or not; now and then nothing."""

    def __init__(self, written: Sequence[Sequence[int]], width: int):
        super().__init__("ngram", width, Pace(1.0))
        self._written, self._done = written, [0] * len(written)
        self._random = np.random.default_rng(3)
        self.accepted: set[int] = set()
        self._asked: dict[int, tuple[int, int]] = {}

    def push(self, slot: int, token: int) -> None:
        super().push(slot, token)
        assert token == self._written[slot][self._done[slot]]
        self._done[slot] += 1

    def drafts(self) -> Mapping[int, list[int]]:
        found = {}
        for slot, at in self._asked.items():
            self.accepted.add(self._done[slot] - at[0] - 1)
        self._asked = {}
        for slot in super().drafts() or self._writing:
            at = self._done[slot]
            most = min(self.width - 1, len(self._written[slot]) - at - 1)
            draft = list(self._written[slot][at : at + most])
            wrong = int(self._random.integers(0, most + 3)) if most else 0
            if wrong < most:
                draft[wrong] = (draft[wrong] + 1) % asking.MODEL.vocabulary
            if draft and self._random.random() < 0.8:
                found[slot], self._asked[slot] = draft, (at, most)
        return found


def requests(kind: str) -> list[Sampling]:
    return [
        Sampling(max_tokens=most, seed=seed, ignore_eos=True, **settings)
        for seed, (most, settings) in enumerate(zip(LENGTHS, SETTINGS[kind], strict=True))
    ]


def compared(engine: Engine, kind: str) -> set[int]:
    """Asserts that drafts change nothing; how many of a draft were accepted at a time."""
    asked = requests(kind)
    engine.draft = "off"
    alone = engine.complete(PROMPTS, asked)
    told: list[Told] = []

    def drafter(slots: Slots) -> Told:
        told.append(Told([samples[0].tokens for samples in alone], slots.width))
        return told[0]

    engine.draft, engine._drafter = "ngram", drafter
    drafted = engine.complete(PROMPTS, asked)
    del engine._drafter
    for [one], [other] in zip(alone, drafted, strict=True):
        same(one, other)
    return told[0].accepted


def same(one: Completion, other: Completion) -> None:
    assert (one.text, one.tokens, one.finish) == (other.text, other.tokens, other.finish)
    assert [p.alternatives[:0] for p in one.likely] == [p.alternatives[:0] for p in other.likely]
    np.testing.assert_allclose([p.logprob for p in one.likely], [p.logprob for p in other.likely], atol=1e-5)


def windowed(mesh: Mesh, layout: str, window: int, **options: Any) -> Engine:
    """Every second layer attends to a window."""
    model = asking.MODEL.model_copy(update={"window": window, "global_period": 2, "layers": 2})
    roles = parse_layout(layout, mesh.axes)
    checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=5))
    return Engine(checkpoint, mesh, roles, roles, **options)


@pytest.fixture(scope="module")
def usual() -> Engine:
    return asking.engine()


@pytest.mark.parametrize("kind", some(2, ["full", "greedy", "sampled", "wide"]))
def test_every_kind_of_draw(usual: Engine, kind: str):
    assert compared(usual, kind) >= {0, WIDTH - 1}


LAYOUTS = ["ws1d/context", "ws2d/batch", "wg-xyz/batch", "ws1d/heads", "ws2d/context", "wg-x/heads"]


@pytest.mark.parametrize("layout", some(1, LAYOUTS))
def test_layouts(layout: str):
    assert compared(asking.engine(layout, CUBE), "full") >= {0, WIDTH - 1}


@pytest.mark.parametrize("layout", some(1, ["x=replica,y=f,z=e/x=batch,y=heads,z=heads", "ws1d/context"]))
def test_int8_caches(layout: str):
    formats = Formats(weights="int8", activations="f32", kv="int8")
    assert compared(asking.engine(layout, CUBE, formats=formats), "sampled") >= {0, WIDTH - 1}


@pytest.mark.parametrize(
    ("layout", "mesh", "window", "chunk"),
    some(
        2,
        [
            ("ws1d/heads", ONE, 6, 3),
            ("ws1d/context", CUBE, 8, None),
            ("ws1d/heads", ONE, 6, None),
            ("ws1d/heads", ONE, 1, None),
            ("ws1d/heads", ONE, 16, 1),
            ("ws1d/heads", ONE, 23, None),
            ("ws2d/context", CUBE, 5, 4),
            ("ws2d/batch", CUBE, 6, 16),
        ],
    ),
)
def test_rings_of_windows(layout: str, mesh: Mesh, window: int, chunk: int | None):
    """A rejected draft has overwritten the place of a key that is still in the window, were the ring no
    longer than that."""
    engine = windowed(mesh, layout, window, options=EngineOptions(chunk=chunk))
    assert compared(engine, "sampled") >= {0, WIDTH - 1}


def test_a_ring_without_room_for_drafts_is_noticed():
    engine = windowed(ONE, "ws1d/heads", 6)
    places = engine.programs.places
    engine.programs.places = lambda layer, capacity, queries=1: places(
        layer, capacity, 1 if queries == WIDTH else queries
    )
    with pytest.raises(AssertionError):
        compared(engine, "sampled")


def test_slots_filled_while_others_verify(usual: Engine):
    engine, asked = usual, requests("full")
    engine.draft = "ngram"
    alone = [samples[0].tokens for samples in engine.complete(PROMPTS, asked)]
    slots, _ = engine.read(PROMPTS, asked, len(PROMPTS))
    found: list[list[int]] = [[] for _ in PROMPTS]
    for row, request in enumerate(asked):
        read = next(engine.read([PROMPTS[row]], [request], 1)[1])
        place = Place(0, 3 - row, Sample(request, request.seed or 0))
        found[row] += [token for token, _ in slots.insert(read, [place]).of(place.slot)]
        drafts = {3 - at: alone[at][len(found[at]) :][:2] for at in range(row + 1)}
        step = slots.verify({slot: draft for slot, draft in drafts.items() if draft})
        for at in range(row + 1):
            found[at] += [token for token, _ in step.of(3 - at)]
        step = slots.step()
        for at in range(row + 1):
            found[at] += [token for token, _ in step.of(3 - at)]
    assert [len(tokens) for tokens in found] == [17, 11, 9, 5]  # that of 9 goes on: slots know no end
    for tokens, whole in zip(found, alone, strict=True):
        assert tokens[: len(whole)] == whole[: len(tokens)]


def test_what_does_not_fit_is_refused(usual: Engine):
    engine = usual
    engine.draft = "ngram"
    asked = [Sampling(max_tokens=16, seed=1)]
    slots, reading = engine.read([[1, 2, 3]], asked, 1)
    slots.insert(next(reading), [Place(0, 0, Sample(asked[0], 1))])
    with pytest.raises(ValueError, match="a draft of 8 tokens does not fit slot 0"):
        slots.verify({0: [1] * WIDTH})
    slots.free(0)
    with pytest.raises(ValueError, match="a draft of 1 tokens does not fit slot 0"):
        slots.verify({0: [1]})


@pytest.mark.parametrize(
    "settings", some(1, [{"stop": ["c3", "bb"]}, {"stop_token_ids": [46, 21]}, {"max_tokens": 5}])
)
def test_a_text_ends_inside_accepted_drafts(usual: Engine, settings: dict[str, Any]):
    """Tokens behind the end that were accepted too are not given out."""
    model = usual
    model.draft = "off"
    [[whole]] = model.complete([[5, 6, 5, 6]], Sampling(max_tokens=40, ignore_eos=True))
    asked = Sampling(**{"max_tokens": 40, "ignore_eos": True, **settings})
    prompt = [5, 6, 5, 6, *whole.tokens, 5, 6, 5, 6]
    [[one]] = model.complete([prompt], asked)
    model.draft = "ngram"  # the whole is in the prompt: that is what is drafted
    [[other]] = model.complete([prompt], asked)
    same(one, other)
