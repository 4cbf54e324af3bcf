"""What a server offers, apart from HTTP: prompts from bodies, generations from the loop as async streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from partita.engine.requests import check_prompts
from partita.engine.stopping import Piece
from partita.errors import InputError
from partita.server.answers import CachedTokens, Choice, Usage, Writer
from partita.server.bodies import ChatBody, CompletionBody, GenerateBody
from partita.server.errors import ApiError
from partita.server.forms import forced_call, form_of
from partita.server.generation import Generation
from partita.server.grammar import Grammar, Grammars
from partita.server.loop import EngineLoop

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

_GRAMMAR_SECONDS = 10.0
"""A form that takes longer to prepare is refused."""


@dataclass(eq=False)
class Answering:
    """The generations of one request: samples of one prompt or of several, counted prompt by prompt."""

    loop: EngineLoop
    generations: list[Generation]
    queue: asyncio.Queue[tuple[int, Piece | Exception]]
    choices: list[Choice]

    def __post_init__(self) -> None:
        self.open = len(self.choices)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces, each with the number of its choice, until all have ended. Raises what ends a request; what
        is left of it is cancelled when nobody goes on reading."""
        try:
            while self.open:
                index, piece = await self.queue.get()
                if isinstance(piece, Exception):
                    raise piece
                self.open -= piece.finish is not None
                yield index, piece
        finally:
            if self.open:
                self.cancel()

    async def collect(self) -> None:
        """Waits for all of it, which is in `choices` then. Raises what ends the request."""
        async for index, piece in self.pieces():
            self.choices[index].add(piece)

    def cancel(self) -> None:
        for generation in self.generations:
            self.loop.cancel(generation)

    def usage(self) -> Usage:
        prompt = sum(len(generation.ids) for generation in self.generations)
        written = sum(len(choice.tokens) for choice in self.choices)
        cached = CachedTokens(cached_tokens=sum(generation.reused for generation in self.generations))
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=written,
            total_tokens=prompt + written,
            prompt_tokens_details=cached,
        )


@dataclass(eq=False)
class Service:
    """One model behind one loop.

    name: what the model is called in answers, and, beside `model`, may be called in requests. sampling: how
    the checkpoint asks to be sampled from. plan: what was planned, as JSON, if anything.
    """

    loop: EngineLoop
    name: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    _grammars: Grammars | None = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.loop.engine.tokenizer

    def check_model(self, asked: str | None) -> None:
        """Raises ApiError (404) for a model that is not the one served."""
        if asked is not None and asked not in (self.name, self.loop.engine.model.name):
            message = f"the model {asked[:80]!r} does not exist; {self.name} is served"
            raise ApiError(404, message, "model", "model_not_found")

    # -- prompts --------------------------------------------------------------------------------------------

    def needs_tokenizer(self, field_name: str) -> Tokenizer:
        """Raises InputError where there is none."""
        if self.loop.engine.tokenizer_error is not None:
            raise self.loop.engine.tokenizer_error
        if self.tokenizer is None:
            raise InputError(field_name, None, "the model has no tokenizer; give token ids as prompt")
        return self.tokenizer

    async def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The token ids of a prompt of a completion."""
        if not isinstance(prompt, str):
            ids = list(prompt)
        else:
            ids = await run_in_threadpool(self.needs_tokenizer("prompt").encode, prompt)
        check_prompts(self.loop.engine.model, [ids])
        return ids

    async def chat_ids(self, body: ChatBody) -> list[int]:
        """The token ids of a chat."""
        tokenizer = self.needs_tokenizer("messages")
        return await run_in_threadpool(
            tokenizer.chat_ids, body.messages, body.tools_shown(), body.documents, body.variables()
        )

    def text_of(self, token: int) -> str:
        if self.tokenizer is None:
            return str(token)
        return self.tokenizer.decode([token], show_special=True)

    async def grammar(self, body: GenerateBody) -> Grammar | None:
        """What the answer must follow, where the body asks for a form. Raises InputError naming the field."""
        form = form_of(body)
        if form is None:
            return None
        if self._grammars is None:
            engine = self.loop.engine
            tokenizer = self.needs_tokenizer(form.field)
            self._grammars = Grammars(tokenizer, engine.model.vocabulary, engine.eos_ids)
        making = asyncio.ensure_future(run_in_threadpool(self._grammars.of, form))
        done, _ = await asyncio.wait([making], timeout=_GRAMMAR_SECONDS)
        if not done:
            raise InputError(form.field, None, f"takes more than {_GRAMMAR_SECONDS:g} s to be prepared")
        return making.result()

    # -- generations ----------------------------------------------------------------------------------------

    async def begin(self, body: GenerateBody, key: str = "") -> Answering:
        """Takes a request on. Raises InputError for what is wrong with it, ApiError for a model that is not
        served and while nothing is, Busy and Stopping."""
        self.check_model(body.model)
        if self.loop.error is not None or not self.loop.ready.is_set():
            raise ApiError(503, "the server is not ready", code="not_ready")
        if isinstance(body, CompletionBody):
            prompts = [await self.prompt_ids(prompt) for prompt in body.prompts()]
        else:
            assert isinstance(body, ChatBody)
            prompts = [await self.chat_ids(body)]
        before, grammar = await self.echoes(body, prompts), await self.grammar(body)
        found = self.answer(body, prompts, key, grammar)
        samples = len(found.choices) // len(prompts)
        for choice in found.choices:
            choice.text = before[choice.index // samples]
        return found

    def answer(
        self,
        body: GenerateBody,
        prompts: Sequence[list[int]],
        key: str = "",
        grammar: Grammar | None = None,
    ) -> Answering:
        """Puts a request's prompts in the queue. Raises InputError, Busy or Stopping, and none of them is."""
        samplings = [body.sampling(self.sampling, self.loop.context - len(ids)) for ids in prompts]
        for ids, sampling in zip(prompts, samplings, strict=True):
            sampling.check_tokens(self.loop.engine.model.vocabulary)
            self.loop.check(ids, sampling)
        here, queue = asyncio.get_running_loop(), asyncio.Queue()
        samples = samplings[0].n
        found = Answering(self.loop, [], queue, [Choice(index) for index in range(samples * len(prompts))])
        try:
            for number, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True)):
                tell = partial(self._tell, here, queue, number * samples)
                ending = partial(self.loop.engine.ending, ids, sampling)
                whose = key or body.user or ""
                submitted = self.loop.submit(ids, sampling, ending, tell, body.priority, whose, grammar)
                found.generations.append(submitted)
        except Exception:
            found.cancel()
            raise
        return found

    @staticmethod
    def _tell(
        here: asyncio.AbstractEventLoop,
        queue: asyncio.Queue[tuple[int, Piece | Exception]],
        first: int,
        sample: int,
        piece: Piece | Exception,
    ) -> None:
        if not here.is_closed():
            here.call_soon_threadsafe(queue.put_nowait, (first + max(0, sample), piece))

    def writer(self, body: GenerateBody) -> Writer:
        """Writes the answer to a body."""
        return Writer(
            isinstance(body, ChatBody),
            self.name,
            self.text_of,
            body.logprobs_asked() is not None,
            bool(body.return_token_ids),
            forced_call(body),
        )

    async def echoes(self, body: GenerateBody, prompts: Sequence[list[int]]) -> list[str]:
        """The text before each choice of the answer: its prompt, where that is asked for."""
        if not (isinstance(body, CompletionBody) and body.echo):
            return [""] * len(prompts)
        if body.logprobs is not None:
            raise InputError("echo", True, "is not supported together with logprobs")
        given = body.prompts()
        return [
            one if isinstance(one, str) else "".join(self.text_of(token) for token in one) for one in given
        ]
