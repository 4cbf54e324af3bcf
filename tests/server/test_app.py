"""The API: what is answered to good and to malformed requests, and that both are in OpenAI's shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.asking import MODEL, prompt, request, tokenizer
from tests.server.asking_http import ask, events
from tests.server.serving import CONTEXT, SLOTS, alone, quiet, small_engine, started

from partita.checkpoints.chat_template import ChatTemplate
from partita.server.service import Service
from partita.specs.sampling import Sampling

_EACH = "{% if m.role == 'x' %}{{ raise_exception('no x') }}{% endif %}a{{ m.content }}"
TEMPLATE = f"{{% for m in messages %}}{_EACH}{{% endfor %}}b"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    engine = small_engine()
    engine.tokenizer = dataclasses.replace(tokenizer(), chat_template=ChatTemplate(TEMPLATE, {}))
    loop = started(engine)
    yield Service(loop, "tiny")
    loop.stop()
    assert loop.join(60)


def body_of(ids: list[int], sampling: Sampling, **more: Any) -> dict[str, Any]:
    names = set(Sampling.model_fields) - {"logprobs"}
    given = {name: getattr(sampling, name) for name in names}
    given["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return {"prompt": ids, **given, "logprobs": sampling.logprobs, **more}


def test_streamed_or_not_the_text_is_what_is_written_alone(service: Service):
    random, asked = np.random.default_rng(8), []
    for kind in ["greedy", "sampled", "wide", "full"] * 4:
        sampling = request(random, kind, n=int(random.integers(1, 3)))
        asked.append((prompt(random), sampling))
    bodies = [body_of(ids, sampling) for ids, sampling in asked]
    streams = [{**body, "stream": stream} for body in bodies for stream in (False, True)]
    answers = ask(service, *[("/v1/completions", body) for body in streams])
    for (ids, sampling), whole, streamed in zip(asked, answers[::2], answers[1::2], strict=True):
        right = alone(service.loop.engine, ids, sampling)
        choices = Completion.model_validate(whole.json()).choices
        assert [(choice.text, choice.finish_reason) for choice in choices] == [(t, f) for t, _, f in right]
        texts, ends = [""] * sampling.n, [None] * sampling.n
        for event in events(streamed):
            (choice,) = event["choices"]
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] = choice.get("finish_reason") or ends[choice["index"]]
        assert list(zip(texts, ends, strict=True)) == [(t, f) for t, _, f in right]
        usage = whole.json()["usage"]
        assert usage["prompt_tokens"] == len(ids)
        assert usage["completion_tokens"] == sum(len(tokens) for _, tokens, _ in right)
    quiet(service.loop)


def test_a_chat_in_pieces_and_whole(service: Service):
    chat = {
        "messages": [{"role": "user", "content": "bc"}],
        "max_completion_tokens": 6,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "stream_options": {"include_usage": True},
    }
    whole, streamed = ask(
        service, ("/v1/chat/completions", chat), ("/v1/chat/completions", chat | {"stream": True})
    )
    answer = ChatCompletion.model_validate(whole.json())
    assert service.tokenizer is not None
    ids = service.tokenizer.chat_ids(chat["messages"])
    (right,) = alone(service.loop.engine, ids, Sampling(max_tokens=6, temperature=0))
    assert answer.choices[0].message.content == right[0]
    content = answer.choices[0].logprobs.content  # pyright: ignore[reportOptionalMemberAccess]
    assert content is not None
    assert [each.token for each in content] == [service.text_of(token) for token in right[1]]
    assert all(each.top_logprobs[0].logprob >= each.logprob - 1e-6 for each in content)
    assert all(len(each.top_logprobs) == 3 for each in content)
    pieces = [ChatCompletionChunk.model_validate(event) for event in events(streamed)]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == right[0]
    assert pieces[-1].choices == []
    assert pieces[-1].usage == answer.usage


def test_several_prompts_of_text_echoed(service: Service):
    body = {"prompt": ["ab", "c"], "n": 2, "echo": True, "max_tokens": 3, "temperature": 0}
    (answer,) = ask(service, ("/v1/completions", body))
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"][:2] for choice in choices[:2]] == ["ab", "ab"]
    assert choices[0]["text"] == choices[1]["text"]
    assert choices[2]["text"].startswith("c")


MALFORMED: dict[str, tuple[str, Any, str | None]] = {
    "cut JSON": ("/v1/completions", b'{"prompt": "a', "body"),
    "no UTF-8": ("/v1/completions", b'{"prompt": "\xff"}', "body"),
    "nested": ("/v1/completions", b"[" * 10**5, None),
    "no object": ("/v1/completions", [1], "body"),
    "no prompt": ("/v1/completions", {}, "prompt"),
    "a prompt of another kind": ("/v1/completions", {"prompt": {"a": 1}}, "prompt"),
    "no prompts": ("/v1/completions", {"prompt": []}, "prompt"),
    "an empty prompt": ("/v1/completions", {"prompt": ""}, "prompt"),
    "a text for a number": ("/v1/completions", {"prompt": "a", "max_tokens": "3"}, "max_tokens"),
    "true for a number": ("/v1/completions", {"prompt": "a", "n": True}, "n"),
    "no tokens": ("/v1/completions", {"prompt": "a", "echo": True, "max_tokens": 0}, "max_tokens"),
    "NaN": ("/v1/completions", b'{"prompt": "a", "temperature": NaN}', "temperature"),
    "infinity": ("/v1/completions", b'{"prompt": "a", "top_p": 1e999}', "top_p"),
    "below zero": ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
    "huge": ("/v1/completions", {"prompt": "a", "max_tokens": 10**30}, "max_tokens"),
    "a huge seed": ("/v1/completions", {"prompt": "a", "seed": 2**64}, "seed"),
    "beyond the context": ("/v1/completions", {"prompt": "a", "max_tokens": CONTEXT}, "max_tokens"),
    "too many samples": ("/v1/completions", {"prompt": "a", "n": SLOTS + 1, "max_tokens": 1}, "n"),
    "an unknown id": ("/v1/completions", {"prompt": [MODEL.vocabulary]}, "prompt"),
    "an id below zero": ("/v1/completions", {"prompt": [-1]}, "prompt"),
    "an unknown stop id": ("/v1/completions", {"prompt": "a", "stop_token_ids": [64]}, "stop_token_ids"),
    "an unknown biased id": ("/v1/completions", {"prompt": "a", "logit_bias": {"64": 1}}, "logit_bias"),
    "a word that is biased": ("/v1/completions", {"prompt": "a", "logit_bias": {"AI": -100}}, "logit_bias"),
    "an empty stop": ("/v1/completions", {"prompt": "a", "stop": ""}, "stop"),
    "many logprobs": ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
    "echoed logprobs": ("/v1/completions", {"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
    "another model": ("/v1/completions", {"prompt": "a", "model": "gpt-9"}, "model"),
    "no messages": ("/v1/chat/completions", {"messages": []}, "messages"),
    "messages that are none": ("/v1/chat/completions", {"messages": ["a"]}, "messages[0]"),
    "no role": ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "messages[0]"),
    "an unknown role": ("/v1/chat/completions", {"messages": [{"role": "x", "content": "a"}]}, "messages"),
    "alternatives alone": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2},
        "top_logprobs",
    ),
    "a picture": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0]",
    ),
    "neither": ("/tokenize", {}, "prompt"),
    "an unknown token": ("/detokenize", {"tokens": [64]}, "token"),
    "no tokens to read": ("/detokenize", {}, "tokens"),
}


def test_malformed_requests_are_refused_naming_the_field(service: Service):
    answers = ask(service, *[(path, body) for path, body, _ in MALFORMED.values()])
    for (name, (_, _, field)), answer in zip(MALFORMED.items(), answers, strict=True):
        assert 400 <= answer.status_code < 500, (name, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, name
        assert error["message"], name
        assert "\n" not in error["message"], name
        if field is not None:
            assert error["param"] == field, (name, error)
    assert ask(service, ("/v1/completions", {"prompt": "a", "max_tokens": 2}))[0].status_code == 200
    quiet(service.loop)


def test_keys_and_sizes(service: Service):
    good = {"prompt": "a", "max_tokens": 2}
    (missing,) = ask(service, ("/v1/completions", good), api_keys=["secret", "other"])
    assert (missing.status_code, missing.json()["error"]["code"]) == (401, "invalid_api_key")
    (open_to_all,) = ask(service, ("/health", None), api_keys=["secret"])
    assert open_to_all.json() == {"live": True, "ready": True}
    (large,) = ask(service, ("/v1/completions", good | {"user": "x" * 1000}), most_bytes=999)
    assert large.status_code == 413
    assert "999 bytes" in large.json()["error"]["message"]


def test_tokens_there_and_back(service: Service):
    text, chat = "a b", [{"role": "user", "content": "c"}]
    (tokens, of_chat) = ask(
        service,
        ("/tokenize", {"prompt": "abc", "return_token_strs": True}),
        ("/tokenize", {"messages": chat}),
    )
    assert service.tokenizer is not None
    assert tokens.json()["tokens"] == service.tokenizer.encode("abc"), text
    assert tokens.json()["max_model_len"] == CONTEXT
    assert of_chat.json()["tokens"] == service.tokenizer.chat_ids(chat)
    (back,) = ask(service, ("/detokenize", {"tokens": [1, 2, 3]}))
    assert back.json() == {"prompt": "abc"}


def test_what_operators_ask_for(service: Service):
    ask(service, ("/v1/completions", {"prompt": [1] * 20, "max_tokens": 3, "ignore_eos": True}))
    quiet(service.loop)
    models, one, metrics, plan, version, document = ask(
        service,
        *[(path, None) for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/plan", "/version")],
        ("/openapi.json", None),
    )
    assert [Model.model_validate(each).id for each in models.json()["data"]] == ["tiny"]
    assert one.json()["id"] == "tiny"
    families = {family.name: family for family in text_string_to_metric_families(metrics.text)}
    ttft = families["vllm:time_to_first_token_seconds"].samples
    assert next(s.value for s in ttft if s.name.endswith("_count")) >= 1
    assert {s.labels["model_name"] for s in ttft} == {"asked"}
    running = families["vllm:num_requests_running"].samples[0].value
    waiting = families["vllm:num_requests_waiting"].samples[0].value
    used = families["vllm:kv_cache_usage_perc"].samples[0].value
    assert (running, waiting, used) == (0, 0, 0)
    assert plan.json()["measured"]["ttft_seconds"]["p50"] > 0
    assert plan.json()["slots"] == SLOTS
    assert version.json()["version"]
    routes = document.json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/health"} <= set(routes)
    assert set(routes["/v1/completions"]["post"]["responses"]) >= {"200", "400", "401", "404", "429", "503"}
