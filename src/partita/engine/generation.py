"""Requests continued together: prompts read in one go, then a token a step for every sample until all end.

Every prompt is read once, however many samples are drawn of it. It is handed its slots; it knows no HTTP and
no order of requests: all begin as soon as they are read, and what has ended leaves its slot empty.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partita.engine.drafting import Drafter
from partita.engine.requests import Sample
from partita.engine.slots import Place, Prompts, Slots, Tokens
from partita.engine.stopping import Ending, Likely, Piece
from partita.errors import NotFiniteError
from partita.program.ops import NO_TOKEN
from partita.program.sampling import ALTERNATIVES
from partita.specs.sampling import Sampling

ReadPrompts = Callable[[int], tuple[Slots, Iterator[Prompts]]]
"""Makes slots for so many samples of all requests, and reads their prompts to the end, in order."""


@dataclass(frozen=True)
class Written:
    """A piece of one sample of one request, both counted from 0."""

    request: int
    sample: int
    piece: Piece


@dataclass(frozen=True)
class Completion:
    """One continuation, whole."""

    text: str
    tokens: list[int]
    finish: str
    likely: list[Likely]
    """One for each token, where log-probabilities were asked for."""


def run(
    requests: Sequence[Sampling],
    read: ReadPrompts,
    ending: Callable[[int], Ending],
    not_finite: Callable[[int, Sequence[int]], NotFiniteError],
    drafter: Callable[[Slots], Drafter],
) -> Iterator[Written]:
    """The pieces of every sample of every request as they are drawn, each prompt with its request's settings.

    ending: gives the `Ending` that the text of a request, by its number, is written to. not_finite: what to
    raise where the logits behind a request's prompt and these tokens are not finite. drafter: gives what
    drafts for the slots.
    """
    samples = [(number, copy) for number, request in enumerate(requests) for copy in range(request.n)]
    seeds = [secrets.randbits(63) if request.seed is None else request.seed for request in requests]
    slots, reading = read(len(samples))
    endings = [ending(number) for number, _ in samples]
    going, drafts = list[int](), drafter(slots)

    def drawn(found: Tokens, among: Sequence[int]) -> Iterator[Written]:
        for slot in among:
            number, copy = samples[slot]
            for token, numbers in found.of(slot):
                if token == NO_TOKEN:
                    raise not_finite(number, endings[slot].tokens)
                drafts.push(slot, token)
                likely = likely_of(numbers, requests[number].logprobs)
                yield Written(number, copy, endings[slot].push(token, likely))
                if endings[slot].finish is not None:
                    slots.free(slot)
                    drafts.end(slot)
                    break
            else:
                going.append(slot)

    first = 0
    for prompts in reading:
        places = [
            Place(number - first, slot, Sample(requests[number], seeds[number], copy))
            for slot, (number, copy) in enumerate(samples)
            if first <= number < first + len(prompts.ids)
        ]
        first += len(prompts.ids)
        found = slots.insert(prompts, places)
        for place in places:
            drafts.begin(place.slot, prompts.ids[place.row], place.sample.request.max_tokens)
        del prompts
        yield from drawn(found, [place.slot for place in places])
    while going:
        found, among = _next(slots, drafts), list(going)
        going.clear()
        yield from drawn(found, among)


def _next(slots: Slots, drafter: Drafter) -> Tokens:
    """The next step: a token for every slot, or drafts verified where that pays and is compiled.

    It is compiled beside the steps once what drafts will save is more than that takes.
    """
    drafts = drafter.drafts()
    if drafts and drafter.draft == "auto" and slots.verifying != "ready":
        if drafter.seconds_to_save > slots.programs.drafts.compile_seconds:
            slots.prepare()
        drafts = {}
    began, beside = time.perf_counter(), drafter.draft == "auto" and slots.verifying == "compiling"
    found = slots.verify(drafts) if drafts else slots.step()
    seconds = time.perf_counter() - began
    if found.counts is not None:
        drafter.steps.append(int(sum(found.counts[slot] for slot in drafter.slots)))
    if not beside:
        drafter.pace.timed(seconds, bool(drafts))
    return found


def completions(pieces: Iterator[Written], requests: Sequence[Sampling]) -> list[list[Completion]]:
    """All samples of every request, once they have ended."""
    kept: dict[tuple[int, int], list[Piece]] = {}
    for one in pieces:
        kept.setdefault((one.request, one.sample), []).append(one.piece)
    return [
        [_completion(kept[number, copy]) for copy in range(request.n)]
        for number, request in enumerate(requests)
    ]


def _completion(pieces: list[Piece]) -> Completion:
    return Completion(
        text="".join(piece.text for piece in pieces),
        tokens=[piece.token for piece in pieces if piece.token is not None],
        finish=pieces[-1].finish or "length",
        likely=[piece.likely for piece in pieces if piece.likely is not None],
    )


def likely_of(numbers: np.ndarray | None, asked: int | None) -> Likely | None:
    """A token's log-probability and those of so many alternatives, from the numbers [M] of its draw."""
    if asked is None or numbers is None:
        return None
    values, tokens = numbers[1 : 1 + asked], numbers[1 + ALTERNATIVES : 1 + ALTERNATIVES + asked]
    pairs = [(int(token), float(value)) for token, value in zip(tokens, values, strict=True) if token >= 0]
    return Likely(float(numbers[0]), tuple(pairs))
