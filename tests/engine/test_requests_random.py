"""Thousands of random requests: nothing is raised, and every one gets what it asked for."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.asking import EOS, MODEL, engine, prompt, request, tokenizer
from tests.sizes import some

from partita.engine.generation import Completion
from partita.program.sampling import KINDS
from partita.specs.sampling import Sampling

WORDS = tokenizer()
COPIES = [1] * 96 + [2] * 32 + [3] * 32
"""Samples of each request of a batch: 160 requests, 256 samples."""


def check(prompt: list[int], ask: Sampling, found: Completion) -> None:
    """That one sample keeps to what its request says; its text is what its tokens add to the prompt's."""
    ends = {*ask.stop_token_ids, *(() if ask.ignore_eos else (EOS,))}
    assert len(found.tokens) <= ask.max_tokens
    assert not ends & set(found.tokens)
    assert not any(stop in found.text for stop in ask.stop)
    assert all(0 <= token < MODEL.vocabulary for token in found.tokens)
    words = WORDS.stream(after=prompt)
    whole = "".join([*map(words.push, found.tokens), words.end()])
    assert whole.startswith(found.text)
    if found.finish == "length":
        assert len(found.tokens) == ask.max_tokens
        assert found.text == whole
    elif found.text != whole:  # cut before a stop text, and that one comes of the last token
        assert any(whole[len(found.text) :].startswith(stop) for stop in ask.stop)
        before = WORDS.stream(after=prompt)
        written = "".join(before.push(token) for token in found.tokens[:-1])
        assert not any(stop in written for stop in ask.stop)
    if ask.temperature <= 1 and ask.repetition_penalty == 1:
        assert not {token for token, bias in ask.logit_bias.items() if bias < -50} & set(found.tokens)
    assert len(found.likely) == (0 if ask.logprobs is None else len(found.tokens))
    for likely in found.likely:
        assert len(likely.alternatives) == ask.logprobs
        assert likely.logprob <= 0
        best = [logprob for _, logprob in likely.alternatives]
        assert best == sorted(best, reverse=True)
        assert not best or likely.logprob <= best[0]


@pytest.mark.parametrize("count", some(1, [15, 63]))
def test_random_requests(count: int):
    """Requests in batches of one shape, so that few steps are compiled; some need little of a draw, most all.

    Two batches are then mixed and asked again: with a seed, other batch-mates and slots make no difference.
    """
    random, runs = np.random.default_rng(2026), engine()
    batches, answered = [], 0
    for number in range(count):
        most = KINDS[min(number % 8, 3)]
        copies = random.permutation(COPIES).tolist()
        requests = [request(random, most, n=n) for n in copies]
        requests[0] = requests[0].model_copy(
            update={"max_tokens": 12}
        )  # so that every batch has one capacity
        prompts = [prompt(random) for _ in requests]
        prompts[0] = (prompts[0] * 16)[:16]
        found = runs.complete(prompts, requests)
        for ids, ask, samples in zip(prompts, requests, found, strict=True):
            assert len(samples) == ask.n
            for sample in samples:
                check(ids, ask, sample)
        batches.append((prompts, requests, found))
        answered += len(requests)
    assert answered == count * len(COPIES)

    traced = runs.programs.traced
    for first, second in ((0, 3), (1, 2), (5, 14)):
        rows = [(p, r, f) for batch in (first, second) for p, r, f in zip(*batches[batch], strict=True)]
        random.shuffle(rows)
        for n in (1, 2, 3):
            assert sum(r.n == n for _, r, _ in rows) == 2 * COPIES.count(n)
        kept = [row for n in (1, 2, 3) for row in [r for r in rows if r[1].n == n][: COPIES.count(n)]]
        random.shuffle(kept)
        again = runs.complete([p for p, _, _ in kept], [r for _, r, _ in kept])
        for (_, ask, before), after in zip(kept, again, strict=True):
            assert [(s.tokens, s.text, s.finish) for s in before] == [
                (s.tokens, s.text, s.finish) for s in after
            ], ask
    assert runs.programs.traced - traced <= 1  # a mix may need a draw that no batch had needed
