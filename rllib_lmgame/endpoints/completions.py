"""Chat completions as OpenAI's clients ask for them: what a request may hold, and the forms of answers and errors.

What changes the replies in a way that is not here (several at once, penalties, a grammar) is refused, never left out;
so is a key that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.text import is_writable

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_MESSAGES = 4096
MOST_OF_TOOLS = 1 << 18
"""Characters of the tools of a request, as JSON."""
INVALID, TOO_LONG = "invalid_request_error", "context_length_exceeded"
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
    "stop": ([], ""),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    # vLLM's own, which its clients send as `extra_body`.
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "length_penalty": (1,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "echo": (False,),
    "chat_template_kwargs": ({},),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("allowed_token_ids", "logits_processors", "chat_template", "documents"), ()),
    **dict.fromkeys(("reasoning_effort", "verbosity"), ()),
}
"""What may be said of these; null may be said of all."""
_INSTEAD = {
    "chat_template_kwargs": "the run's `language_model.chat_template_kwargs` hold for all requests",
    "chat_template": "the run's `language_model.chat_template` holds for all requests",
    "reasoning_effort": "the run's `language_model.chat_template_kwargs` say it, where the template knows it",
    "function_call": "write calls as `tool_calls`",
}
_READ = (
    *("model", "messages", "tools", "stream", "stream_options", "max_completion_tokens", "max_tokens"),
    *("temperature", "top_p", "seed"),
)
_OF_THE_BOOKS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "cache_salt", "priority"),
)
"""What says nothing of the reply."""
_OF_MESSAGES = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
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
class ScoreRequest:
    """Tokens whose log-probabilities a client asks for, two or more."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class ScoredPrompt:
    """Log-probabilities of all tokens but the first, and the texts of these: as vLLM's server sends them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    texts: tuple[str, ...]

    def body(self, completion_id: str, model: str, created: int) -> dict[str, Any]:
        known = zip(self.ids[1:], self.logprobs, self.texts, strict=True)
        scored = [{str(token): {"logprob": number, "decoded_token": text}} for token, number, text in known]
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
        head = {"id": completion_id, "object": "text_completion", "created": created, "model": model}
        usage = {"prompt_tokens": len(self.ids), "completion_tokens": 0, "total_tokens": len(self.ids)}
        return {**head, "choices": [{**choice, "prompt_logprobs": [None, *scored]}], "usage": usage}


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
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }

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


def read_request(body: Any) -> ChatRequest:
    """Raises: RequestError: something is not as it must be, or not to be had here."""
    if not isinstance(body, Mapping):
        raise RequestError(f"the request must be a JSON object, got {describe(body)}")
    for key, allowed in _ONLY.items():
        if body.get(key) is not None and body[key] not in allowed:
            hint = f"; it may be {', '.join(map(json.dumps, allowed))}" if allowed else ""
            hint = f"; {_INSTEAD[key]}" if key in _INSTEAD else hint
            raise RequestError(f"`{key}` is not to be had here{hint}", key, "unsupported_parameter")
    _check_keys(body, (*_READ, *_ONLY, *_OF_THE_BOOKS), "", "unsupported_parameter")
    listed = body.get("messages")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_MESSAGES:
        raise RequestError(f"`messages` must be a list of 1 to {MOST_MESSAGES} messages", "messages")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError("`stream` must be true or false", "stream")
    options = body.get("stream_options") or {}
    limits = [_number(body, key, 1, 1 << 31, whole=True) for key in ("max_completion_tokens", "max_tokens")]
    seed = _number(body, "seed", -(1 << 63), 1 << 63, whole=True)
    return ChatRequest(
        tuple(_message(message, f"messages[{place}]") for place, message in enumerate(listed)),
        "" if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        next((int(limit) for limit in limits if limit is not None), None),
        _number(body, "temperature", 0, 100),
        _number(body, "top_p", 0, 1),
        None if seed is None else int(seed),
        stream,
        isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def _check_keys(said: Mapping[str, Any], known: Sequence[str], where: str, code: str | None = None) -> None:
    """Raises: RequestError: something is said under a key that is not known."""
    for key, value in said.items():
        if key not in known and value not in (None, "", [], {}):
            hint = _INSTEAD.get(key) or did_you_mean(key, known, f"known are {', '.join(known)}")
            raise RequestError(f"`{where}{key}` is not known here; {hint}", f"{where}{key}", code)


def read_score_request(body: Any) -> ScoreRequest:
    """Of the completions that are no chat this alone is to be had. Raises: RequestError: it asks for something else."""
    if not isinstance(body, Mapping):
        raise RequestError(f"the request must be a JSON object, got {describe(body)}")
    for key, allowed in (("prompt_logprobs", (0, 1)), ("max_tokens", (0, 1)), ("logprobs", (None,)), ("n", (None, 1))):
        if body.get(key) not in allowed or isinstance(body.get(key), bool):
            raise RequestError(
                "here `prompt_logprobs: 0` alone is to be had, of a `prompt` of token ids with `max_tokens: 0`; "
                f"`{key}` may not be {describe(body.get(key))}; replies are written at /v1/chat/completions",
                key,
                "unsupported_parameter",
            )
    if body.get("stream"):
        raise RequestError("`stream` is not to be had here", "stream", "unsupported_parameter")
    ids = body.get("prompt")
    if not isinstance(ids, list) or len(ids) < 2 or not all(type(each) is int and 0 <= each < 1 << 31 for each in ids):
        raise RequestError("`prompt` must be a list of two token ids or more", "prompt")
    return ScoreRequest(tuple(ids))


def _number(body: Mapping[str, Any], key: str, low: float, high: float, whole: bool = False) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"`{key}` must be {kind} from {low:g} to {high:g}, got {describe(value)}", key)
    return value


def _message(message: Any, where: str) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise RequestError(f"`{where}` must be an object, got {describe(message)}", where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"`{where}.role` must be one of {', '.join(ROLES)}, got {describe(role)}", where)
    calls = tuple(
        _read_call(call, f"{where}.tool_calls[{place}]")
        for place, call in enumerate(_list(message.get("tool_calls"), f"{where}.tool_calls"))
    )
    if calls and role != "assistant":
        raise RequestError(f"`{where}.tool_calls` belong to an assistant's message", where)
    _check_keys(message, (*_OF_MESSAGES, *_OF_REPLIES), f"{where}.")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(reasoning, str) or not is_writable(reasoning):
        raise RequestError(f"`{where}.reasoning_content` must be text, got {describe(reasoning)}", where)
    name = message.get("name")
    if not isinstance(name, str | None):
        raise RequestError(f"`{where}.name` must be text, got {describe(name)}", where)
    role = "system" if role == "developer" else role
    return ChatMessage(role, _content(message.get("content"), where), calls, name or "", reasoning)


def _content(content: Any, where: str) -> str:
    """Text, or the texts of its parts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content, f"{where}.content")
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str) or not is_writable(text):
            raise RequestError(f"`{where}.content` must be text, or parts of `type: text`", where)
        texts.append(text)
    return "".join(texts)


def _read_call(call: Any, where: str) -> tuple[str, str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    parts = (call.get("id"), function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else ()
    if len(parts) != 3 or not all(isinstance(part, str) and is_writable(part) for part in parts):
        raise RequestError(f"`{where}` must have an id and a function with name and arguments, all texts", where)
    return parts  # type: ignore[return-value]


def _tools(tools: Any) -> str:
    """Tools as JSON."""
    listed = _list(tools, "tools")
    for place, tool in enumerate(listed):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"`tools[{place}]` must be a function with a name", "tools")
    try:
        text = json.dumps(listed)
    except RecursionError:
        raise RequestError("`tools` are nested too deep", "tools") from None
    if len(text) > MOST_OF_TOOLS:
        raise RequestError(f"`tools` have {len(text):,} characters, more than {MOST_OF_TOOLS:,}", "tools")
    return text if listed else ""


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(f"`{where}` must be a list, got {describe(value)}", where)
    return value
