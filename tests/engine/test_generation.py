"""Generation as users ask for it: samples of one prompt, streams, log-probabilities, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.asking import MODEL, engine
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from partita.checkpoints.tokenizer import Tokenizer, Tokens
from partita.engine.engine import Engine
from partita.engine.requests import check_prompts, fitted
from partita.errors import InputError
from partita.specs.sampling import Sampling

PROMPT = [3, 20, 41, 7]


@pytest.fixture(scope="module")
def usual() -> Engine:
    return engine()


def test_samples_of_one_prompt_read_it_once(usual: Engine, monkeypatch: pytest.MonkeyPatch):
    read, reads = [], usual.programs.read

    def counting(*given):
        step = reads(*given)

        def run(parameters, cache, logits, tokens, held, counts, reach, ends):
            read.append((tokens.shape[0], int(counts.sum())))
            return step(parameters, cache, logits, tokens, held, counts, reach, ends)

        return run

    monkeypatch.setattr(usual.programs, "read", counting)
    ask = Sampling(max_tokens=6, temperature=1.5, n=8, seed=3)
    (samples,) = usual.complete([PROMPT], ask)
    assert read == [(1, len(PROMPT))]  # one row, and its four tokens
    assert len({tuple(sample.tokens) for sample in samples}) == 8
    for few in (1, 3):  # the first samples are those of a request for fewer
        (first,) = usual.complete([PROMPT], ask.model_copy(update={"n": few}))
        assert first == samples[:few]


def test_a_stream_is_the_text_of_the_first_sample(usual: Engine):
    settings = {"max_tokens": 9, "temperature": 1.2, "seed": 5, "ignore_eos": True}
    (samples,) = usual.complete([PROMPT], Sampling(**settings))
    assert "".join(usual.stream(PROMPT, **settings)) == samples[0].text
    stop = samples[0].text[4:6]
    cut = "".join(usual.stream(PROMPT, **settings, stop=stop))
    assert cut == samples[0].text[: samples[0].text.index(stop)]


def test_special_tokens_are_shown_where_asked_for_and_stop_a_text(
    usual: Engine, monkeypatch: pytest.MonkeyPatch
):
    backend = Backend(models.WordLevel({f"t{i} ": i for i in range(MODEL.vocabulary)}, unk_token="t0 "))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend, Tokens(backend, MODEL.vocabulary), special=frozenset([7]))
    monkeypatch.setattr(usual, "tokenizer", tokenizer)
    ask = Sampling(max_tokens=3, ignore_eos=True, logit_bias={7: 100})
    settings = [{}, {"skip_special_tokens": False}, {"stop": ("t7 t7 ",)}, {"stop": ("t8 ",)}]
    found = usual.complete([PROMPT] * 4, [ask.model_copy(update=changes) for changes in settings])
    assert [samples[0].text for samples in found] == ["", "t7 " * 3, "", ""]
    assert [samples[0].finish for samples in found] == ["length", "length", "stop", "length"]
    assert [len(samples[0].tokens) for samples in found] == [3, 3, 2, 3]


def test_log_probabilities_are_those_of_the_logits(usual: Engine):
    ask = Sampling(max_tokens=5, temperature=0.8, seed=2, logprobs=3, ignore_eos=True, logit_bias={9: 3.0})
    (samples,) = usual.complete([PROMPT], ask)
    tokens = samples[0].tokens
    logits = usual.logits([[*PROMPT, *tokens]])[0].astype(np.float64)[len(PROMPT) - 1 : -1]
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for token, row, likely in zip(tokens, wanted, samples[0].likely, strict=True):
        assert likely.logprob == pytest.approx(row[token], abs=1e-4)
        assert [logprob for _, logprob in likely.alternatives] == pytest.approx(-np.sort(-row)[:3], abs=1e-4)
        assert [row[other] for other, _ in likely.alternatives] == pytest.approx(-np.sort(-row)[:3], abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "field", "accepted"),
    [
        ({"stop_token_ids": [MODEL.vocabulary]}, "stop_token_ids", "0 to 63"),
        ({"logit_bias": {99: 1}}, "logit_bias", "0 to 63"),
        ({"temperature": -1}, "temperature", "0 to 100"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
    ],
    ids=str,
)
def test_settings_that_are_refused(usual: Engine, settings: dict, field: str, accepted: str):
    with pytest.raises(InputError, match=accepted) as error:
        list(usual.stream(PROMPT, **settings))
    assert error.value.field == field


def test_every_prompt_needs_settings(usual: Engine):
    with pytest.raises(InputError, match="each of 2 prompts"):
        usual.complete([PROMPT, PROMPT], [Sampling()])


def test_the_usual_length_is_shortened_near_the_end_of_the_context_and_a_given_one_refused():
    model = MODEL.model_copy(update={"max_context": 100})
    for prompt, wanted in [(1, 64), (36, 64), (37, 63), (98, 2), (99, 1), (100, 1)]:
        found = fitted(model, prompt, Sampling(temperature=1.0).model_copy(update={"n": 2}))
        assert (found.max_tokens, found.temperature, found.n) == (wanted, 1.0, 2)
    assert fitted(MODEL, 10**6, Sampling()).max_tokens == 64  # it has no end
    given = Sampling(max_tokens=64)
    assert fitted(model, 99, given) == given
    with pytest.raises(InputError) as error:
        check_prompts(model, [[1], [2] * 90], 64)
    message = "prompt 90 + output 64 exceeds the 100 tokens that asked takes"
    assert (error.value.field, error.value.value, error.value.message) == ("context", 154, message)
