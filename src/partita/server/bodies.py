"""What clients send: the bodies of OpenAI's API, with the further fields that vLLM's clients use.

Fields that are not known are ignored, as those servers do. What a body asks for becomes `Sampling`, whose
ranges are checked there; here only the kind of each value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from partita.errors import InputError
from partita.specs.sampling import Sampling

_DEFAULT_TEMPERATURE = 1.0
"""Of OpenAI's API, where neither the request nor the checkpoint says otherwise."""
_DEFAULT_COMPLETION = 16
"""Most tokens of a completion, of OpenAI's legacy API, that leaves it open; a chat may fill the context."""
_DRAWN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(Body):
    """include_usage: a last piece has no choices, and the tokens of the whole."""

    include_usage: bool = False


class JsonSchema(Body):
    """`schema`, as JSON; its name and description are for people."""

    schema_: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(Body):
    """What an answer must be. `json_schema` holds `schema`, as in OpenAI's API."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GenerateBody(Body, ABC):
    """Fields of completions and chats alike."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    n: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int = 0
    user: str | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    """vLLM's: one of `json` (a schema), `regex`, `choice` (texts) and `grammar` (in Lark)."""

    def most_tokens(self) -> int | None:
        return self.max_tokens

    @abstractmethod
    def logprobs_asked(self) -> int | None:
        """Alternatives whose log-probabilities are asked for beside each token's; None for none at all."""

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def usage_at_the_end(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, asked: Mapping[str, float], room: int) -> Sampling:
        """How tokens are drawn: as the body says, else as the checkpoint asks, else as OpenAI's API has it.

        room: tokens that the context has left. Raises InputError naming the field.
        """
        given: dict[str, Any] = {
            name: value
            for name in (*_DRAWN, "presence_penalty", "frequency_penalty", "logit_bias", "n", "seed")
            if (value := getattr(self, name)) is not None
        }
        given = {"temperature": _DEFAULT_TEMPERATURE, **{n: asked[n] for n in _DRAWN if n in asked}} | given
        most = self.most_tokens()
        given["max_tokens"] = max(1, self._open_tokens(asked, room)) if most is None else most
        return Sampling(
            **given,
            stop=() if self.stop is None else self.stop,
            stop_token_ids=self.stop_token_ids or (),
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=self.logprobs_asked(),
        )

    @abstractmethod
    def _open_tokens(self, asked: Mapping[str, float], room: int) -> int:
        """Most tokens where the body leaves them open."""


class CompletionBody(GenerateBody):
    """`/v1/completions`: texts, or token ids, to go on from."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None

    def logprobs_asked(self) -> int | None:
        return self.logprobs

    def _open_tokens(self, asked: Mapping[str, float], room: int) -> int:
        return min(room, _DEFAULT_COMPLETION)

    def prompts(self) -> list[str | list[int]]:
        """Each a text or token ids. Raises InputError where there is none."""
        given = self.prompt
        if isinstance(given, list) and given and isinstance(given[0], int):
            return [given]  # pyright: ignore[reportReturnType]
        found = given if isinstance(given, list) else [given]
        if not found:
            raise InputError("prompt", None, "at least one prompt is needed")
        return found  # pyright: ignore[reportReturnType]


class Function(Body):
    """What a tool is called by, and with."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments."""


class Tool(Body):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatBody(GenerateBody):
    """`/v1/chat/completions`: messages to answer."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None

    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def logprobs_asked(self) -> int | None:
        """Raises InputError where alternatives are asked for and log-probabilities are not."""
        if self.top_logprobs and not self.logprobs:
            raise InputError("top_logprobs", self.top_logprobs, "needs logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else None

    def _open_tokens(self, asked: Mapping[str, float], room: int) -> int:
        return min(room, int(asked.get("max_tokens", room)))

    def tools_shown(self) -> list[dict[str, Any]] | None:
        """The tools as the chat template is given them; none where none may be called."""
        if self.tools is None or self.tool_choice == "none":
            return None
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    def variables(self) -> dict[str, Any]:
        """What the chat template is told beside the messages."""
        found = dict(self.chat_template_kwargs or {})
        for name in ("add_generation_prompt", "continue_final_message", "reasoning_effort"):
            if (value := getattr(self, name)) is not None:
                found.setdefault(name, value)
        return found


class TokenizeBody(Body):
    """`/tokenize`: a text, or a chat as its template renders it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """`/detokenize`: token ids."""

    model: str | None = None
    tokens: list[int] = Field(max_length=10**7)
