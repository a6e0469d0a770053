"""Chat completions of an OpenAI-compatible server.

1. Every request ends: with an answer, or with :class:`EndpointError` after bounded attempts, time and size.
2. Passing faults (too many requests, server faults, no connection, no answer) are tried again, ever later or when the
   server says. Lasting ones (a wrong key, an unknown model) are not.
3. The key goes only to the endpoint: no redirect, no proxy. It is left out of what is shown of a server's errors.
4. After many failed requests in a row the rest fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self, TypeGuard, TypeVar

import aiohttp

from rllib_lmgame.base import http_client
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.text import one_line, printable
from rllib_lmgame.endpoints.address import Address, EndpointOptions

Message = dict[str, str]

T = TypeVar("T")

GIVE_UP_AFTER = 8
"""Requests in a row that failed, after all attempts."""

MOST_TOKENS = 10**9
"""A larger number of tokens of one answer is no count."""

SHOWN = 200
"""Most characters of a server's error that a message shows."""

KEY_LENGTH = 8
"""Characters of the shortest key that is left out: shorter ones, as `none` and `EMPTY`, are words."""

TOO_LONG = ("context_length_exceeded", "maximum context length", "context length is", "longer than the maximum")
"""How servers say that a conversation is too long for the model."""


class EndpointError(Exception):
    """The server gave no answer that can be used; the message says why."""


class ConversationTooLong(EndpointError):
    """The conversation does not fit the model's context."""


@dataclass(frozen=True)
class Answer:
    """A reply of the model, with its reasoning and token counts (written and read) if the server reports them."""

    text: str
    reasoning: str | None
    tokens: int | None
    prompt_tokens: int | None


@dataclass
class Counts:
    requests: int = 0
    attempts_again: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answers_without_token_counts: int = 0


class Passing(Exception):
    """A problem that may pass; ``after_s`` is how long the server asks to wait."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class EndpointClient:
    """A client of one model, an asynchronous context; ``time_limit_s`` is for one attempt."""

    def __init__(self, address: Address, options: EndpointOptions, time_limit_s: float, at_once: int) -> None:
        self.address = address
        self.options = options
        self.counts = Counts()
        self._key = address.key()
        self._limit_s = time_limit_s
        self._at_once = at_once
        self._failed_in_a_row = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        self._session = http_client.client(headers, connector=aiohttp.TCPConnector(limit=self._at_once))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check(self) -> None:
        """Ask the server for its models, whatever they are.

        Raises: ConfigError: if nobody answers after all attempts, or the key is refused.
        """
        try:
            status, content = await self._attempts(partial(self._ask, "GET", "models"))
        except EndpointError as problem:
            raise ConfigError("", str(problem)) from None
        if status in (401, 403):
            of = "none is sent" if self.address.variable is None else f"it is taken from ${self.address.variable}"
            raise ConfigError("", f"{self.address.url} refuses the key ({of}): {self._told(status, content)}")
        if 300 <= status < 400:
            raise ConfigError("", f"{self.address.url} leads elsewhere, and redirects are not followed (HTTP {status})")

    async def answer(self, messages: list[Message], **sampling: Any) -> Answer:
        """The model's reply to ``messages``; ``sampling`` are further fields of the request (``max_tokens`` ...).

        Raises: ConversationTooLong: for the model's context; EndpointError: no answer after all attempts.
        """
        body = {"model": self.address.model, "messages": messages, **sampling, **self.options.request}
        body = {key: value for key, value in body.items() if value is not None}
        return await self._counted(partial(self._completion, body))

    async def _counted(self, request: Callable[[], Awaitable[T]]) -> T:
        """What ``request`` gives after at most all attempts; raises as :meth:`answer`."""
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise EndpointError(f"{self.address.url} was given up after {GIVE_UP_AFTER} requests in a row had failed")
        self.counts.requests += 1
        try:
            answer = await self._attempts(request)
        except ConversationTooLong:
            raise
        except EndpointError:
            self.counts.failed_requests += 1
            self._failed_in_a_row += 1
            raise
        self._failed_in_a_row = 0
        return answer

    async def _completion(self, body: dict[str, Any]) -> Answer:
        status, content = await self._ask("POST", "chat/completions", body)
        if status == 200:
            return self._read(content)
        raise self._refused(status, content)

    def _refused(self, status: int, content: bytes) -> EndpointError:
        told, said = self._told(status, content), _error_of(content).lower()
        if status in (400, 413, 422) and any(word in said for word in TOO_LONG):
            return ConversationTooLong(told)
        return EndpointError(told)

    async def _attempts(self, request: Callable[[], Awaitable[T]]) -> T:
        """What ``request`` gives, tried again while its problem may pass; EndpointError after all attempts."""
        for attempt in range(self.options.attempts):
            try:
                return await request()
            except Passing as problem:
                if attempt + 1 == self.options.attempts:
                    tried = f"; tried {self.options.attempts} times" * (self.options.attempts > 1)
                    raise EndpointError(f"{problem}{tried}") from None
                self.counts.attempts_again += 1
                wait = self.options.first_wait_s * 2**attempt if problem.after_s is None else problem.after_s
                await asyncio.sleep(min(wait, self.options.longest_wait_s))
        raise AssertionError("there is at least one attempt")

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and content of one exchange; raises Passing for no answer, or one that says that it may pass."""
        assert self._session is not None, "the client is entered first"
        url, most = self.address.url, self.options.max_answer_bytes
        try:
            reply = await http_client.ask(self._session, method, f"{url}/{path}", self._limit_s, most, json=body)
        except (http_client.Late, http_client.TooLong) as error:
            raise Passing(f"{url} {error}") from None
        except http_client.NoAnswer as error:
            raise Passing(f"no answer from {url}: {self._clean(str(error))}") from None
        if reply.status == 429 or reply.status >= 500:
            raise Passing(self._told(reply.status, reply.content), _seconds(reply.headers))
        return reply.status, reply.content

    def _read(self, content: bytes) -> Answer:
        try:
            response = parse(content)
            message = response["choices"][0]["message"]
            text, reasoning = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise Passing(f"{self.address.url} sent no chat completion: {self._clean(_shown(content))!r}") from None
        if not isinstance(text, str | None) or not isinstance(reasoning, str | None):
            raise Passing(f"{self.address.url} sent a chat completion that is no text")
        return Answer(text or "", reasoning, *self._count(response.get("usage")))

    def _count(self, usage: Any) -> tuple[int, int] | tuple[None, None]:
        spent = usage if isinstance(usage, dict) else {}
        prompt, completion = spent.get("prompt_tokens"), spent.get("completion_tokens")
        if not (_is_count(prompt) and _is_count(completion)):
            self.counts.answers_without_token_counts += 1
            return None, None
        self.counts.prompt_tokens += prompt
        self.counts.completion_tokens += completion
        return completion, prompt

    def _told(self, status: int, content: bytes) -> str:
        return f"{self.address.url} answered HTTP {status}: {self._clean(_error_of(content))}"

    def _clean(self, text: str) -> str:
        if self._key is not None and len(self._key) >= KEY_LENGTH:
            text = text.replace(self._key, "***")
        return printable(one_line(text))[:SHOWN]

    def spent(self) -> dict[str, int]:
        counts = asdict(self.counts)
        return {name: number for name, number in counts.items() if number or name == "requests"}


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_TOKENS


def _shown(content: bytes) -> str:
    return content[: 4 * SHOWN].decode("utf-8", "replace")


def _error_of(content: bytes) -> str:
    """The error in a response, as OpenAI's form has it; else what the response begins with."""
    try:
        error = parse(content)["error"]
        if isinstance(error, str):
            return error
        return " ".join(str(error[key]) for key in ("code", "message") if error[key])
    except (ValueError, KeyError, TypeError, AttributeError):
        return _shown(content)


def _seconds(headers: Any) -> float | None:
    """What ``Retry-After`` says, in seconds; a date counts as nothing."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
