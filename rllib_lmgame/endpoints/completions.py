"""Chat completions as OpenAI's clients ask for them: what a request may hold, and the forms of answers and errors.

What changes the replies in a way that is not here (several at once, penalties, a grammar) is refused, never left out;
so is a key that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rllib_lmgame.base.errors import did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.text import is_writable

MOST_MESSAGES = 4096
MOST_OF_TOOLS = 1 << 18
"""Characters of the tools of a request, as JSON."""
INVALID, TOO_LONG = "invalid_request_error", "context_length_exceeded"
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "top_k": -1,
    "repetition_penalty": 1,
    "length_penalty": 1,
    "add_generation_prompt": True,
    "include_reasoning": True,
}
"""What may be said of keys that are not supported; of all of them null, false, 0 and nothing may be."""
_INSTEAD = {
    "chat_template_kwargs": "the run's `language_model.chat_template_kwargs` hold for all requests",
    "chat_template": "the run's `language_model.chat_template` holds for all requests",
    "reasoning_effort": "the run's `language_model.chat_template_kwargs` say it, where the template knows it",
    "function_call": "write calls as `tool_calls`",
}
_OF_THE_BOOKS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "cache_salt", "priority", "parallel_tool_calls"),
)
"""What says nothing of the reply."""
_OF_REPLIES = ("refusal", "annotations", "id", "index", "parsed", "provider_specific_fields")
"""What a client may send back of a reply, though it says nothing."""


class RequestError(Exception):
    """An answer that says what is wrong with a request.

    Args:
        message: In words.
        param: The key of the request that is wrong.
        code: What a program can go by.
        status: Of HTTP.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    def body(self) -> dict[str, Any]:
        kind = INVALID if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ChatMessage:
    """One message; ``calls`` are those of an assistant: id, name and arguments as JSON. ``name`` is a tool's.

    ``reasoning`` is an assistant's; it tells apart replies that say the same, and is shown as a part of these alone.
    """

    role: str
    content: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    name: str = ""
    reasoning: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for the same message, however a client writes it down. Calls go by their unique ids alone."""
        if self.calls:
            return (self.role, tuple(call[0] for call in self.calls))
        said = self.content.strip() if self.role == "assistant" else self.content
        return (self.role, said, self.name, self.reasoning.strip())


@dataclass(frozen=True)
class ChatRequest:
    """What a client asks for.

    Attributes:
        messages: At least one.
        tools: As JSON, empty if there are none, or none may be called.
        max_tokens: Longest reply that the client wants; ``None``: as long as may be.
        temperature, top_p, seed: How the client wants it sampled.
        stream: It is sent as events.
        include_usage: The last event counts tokens.
    """

    messages: tuple[ChatMessage, ...]
    tools: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False

    @property
    def new_messages(self) -> tuple[ChatMessage, ...]:
        """Those behind the last reply."""
        replies = [place for place, message in enumerate(self.messages) if message.role == "assistant"]
        return self.messages[replies[-1] + 1 :] if replies else self.messages

    @property
    def text(self) -> str:
        """What is new in it, to be read by people."""
        new = self.new_messages
        if len(new) == 1 and new[0].role == "user":
            return new[0].content
        return "\n\n".join(f"[{message.role}] {message.content}" for message in new)


@dataclass(frozen=True)
class ChatReply:
    """A completion: its text, or the tools it calls (as :class:`ChatMessage` has them), and its reasoning, if any."""

    content: str
    calls: tuple[tuple[str, str, str], ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning: str | None = None

    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "total_tokens": total}

    def message(self) -> dict[str, Any]:
        said: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.reasoning is not None:
            said["reasoning_content"] = self.reasoning
        if self.calls:
            said["tool_calls"] = [call_data(*call) for call in self.calls]
        return said

    def body(self, completion_id: str, model: str, created: int) -> dict[str, Any]:
        choice = {"index": 0, "message": self.message(), "finish_reason": self.finish_reason, "logprobs": None}
        head = {"id": completion_id, "object": "chat.completion", "created": created, "model": model}
        return {**head, "choices": [choice], "usage": self.usage()}

    def events(self, completion_id: str, model: str, created: int, include_usage: bool) -> Iterator[str]:
        """The same as events of a stream, each a line of ``data:`` and an empty one."""
        head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        delta = self.message()
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        counted: dict[str, Any] = {"usage": None} if include_usage else {}
        for part, reason in ((delta, None), ({}, self.finish_reason)):
            choice = {"index": 0, "delta": part, "finish_reason": reason, "logprobs": None}
            yield _event({**head, "choices": [choice], **counted})
        if include_usage:
            yield _event({**head, "choices": [], "usage": self.usage()})
        yield "data: [DONE]\n\n"


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def call_data(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as messages have it; ``arguments`` are JSON, or a mapping, as most chat templates take them."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _writable(text: str) -> str:
    if not is_writable(text):
        raise ValueError("must be text that UTF-8 has a form for")
    return text


_Text = Annotated[str, AfterValidator(_writable)]


class _Form(BaseModel):
    """A part of a request; keys that are not known are looked at elsewhere."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Function(_Form):
    name: _Text
    arguments: _Text


class _Call(_Form):
    id: _Text
    function: _Function


class _Part(_Form):
    type: Literal["text"]
    text: _Text


class _Message(_Form):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _Text | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    name: str | None = None
    reasoning_content: _Text | None = None
    reasoning: _Text | None = None


class _NamedFunction(_Form):
    name: str


class _Tool(_Form):
    type: Literal["function"]
    function: _NamedFunction


_Tokens = Annotated[int, Field(ge=1, le=1 << 31)] | None


class _Request(_Form):
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_completion_tokens: _Tokens = None
    max_tokens: _Tokens = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=1 << 63)] | None = None


def read_request(body: Any) -> ChatRequest:
    """Raises: RequestError: something is not as it must be, or not supported."""
    if not isinstance(body, Mapping):
        raise RequestError(f"the request must be a JSON object, got {describe(body)}")
    _check_keys(body, ("model", *_Request.model_fields, *_OF_THE_BOOKS), "", "unsupported_parameter")
    try:
        asked = _Request.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [part for part in first["loc"] if isinstance(part, int) or part.replace("_", "").isalpha()]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "str")[1:]
        raise RequestError(f"`{where}`: {first['msg']}", where) from None
    return ChatRequest(
        tuple(_message(*each) for each in enumerate(zip(asked.messages, body["messages"], strict=True))),
        "" if asked.tool_choice == "none" else _tools(body.get("tools") or []),
        asked.max_completion_tokens or asked.max_tokens,
        asked.temperature,
        asked.top_p,
        asked.seed,
        bool(asked.stream),
        (asked.stream_options or {}).get("include_usage") is True,
    )


def _check_keys(said: Mapping[str, Any], known: Sequence[str], where: str, code: str | None = None) -> None:
    """Raises: RequestError: something is said under a key that is not known."""
    for key, value in said.items():
        if key not in known and value and value != _NEUTRAL.get(key):
            hint = _INSTEAD.get(key) or did_you_mean(key, known, f"known are {', '.join(known)}")
            raise RequestError(f"`{where}{key}` is not supported; {hint}", f"{where}{key}", code)


def _message(place: int, message: tuple[_Message, Mapping[str, Any]]) -> ChatMessage:
    said, raw = message
    where = f"messages[{place}]"
    _check_keys(raw, (*_Message.model_fields, "tool_call_id", *_OF_REPLIES), f"{where}.")
    calls = tuple((call.id, call.function.name, call.function.arguments) for call in said.tool_calls or ())
    if calls and said.role != "assistant":
        raise RequestError(f"`{where}.tool_calls` belong to an assistant's message", where)
    content = said.content if isinstance(said.content, str) else "".join(part.text for part in said.content or ())
    role = "system" if said.role == "developer" else said.role
    return ChatMessage(role, content, calls, said.name or "", said.reasoning_content or said.reasoning or "")


def _tools(listed: list[Any]) -> str:
    try:
        text = json.dumps(listed)
    except RecursionError:
        raise RequestError("`tools` are nested too deep", "tools") from None
    if len(text) > MOST_OF_TOOLS:
        raise RequestError(f"`tools` have {len(text):,} characters, more than {MOST_OF_TOOLS:,}", "tools")
    return text if listed else ""
