"""Log-probabilities of given tokens, by an OpenAI-compatible server: ids in, a number for each of them out.

vLLM's ``prompt_logprobs`` name the ids that they are of. Other servers are asked to ``echo`` the prompt with
``logprobs``, which must then be as many as its tokens. Both are at temperature 1, over the whole vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.endpoints.client import ConversationTooLong, EndpointClient, EndpointError, Passing

ALONE: Mapping[str, Any] = {"max_tokens": 0, "echo": True}
"""Of a request: the prompt is all that is wanted."""
FORMS: tuple[Mapping[str, Any], ...] = ({"prompt_logprobs": 0}, {"logprobs": 1})
"""How it says that its log-probabilities are, the surer one first."""

LEAST, MOST = -1e6, 1e-3
"""Of a log-probability; rounding may take it above 0."""

BROKEN = "\ufffd"
"""In the text of a token that is a part of a character."""


@dataclass(frozen=True)
class Scored:
    """``logprobs`` of each token but the first, given those before it; ``texts``: what each is, where the server says
    it.
    """

    logprobs: list[float]
    texts: list[str | None]


class NotScored(EndpointError):
    """The server answers, but with no log-probabilities of the tokens."""


class ScoringClient(EndpointClient):
    """A client that asks for log-probabilities; the first answer shows in which of :data:`FORMS`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._form: Mapping[str, Any] | None = None
        self._finding = asyncio.Lock()

    async def score(self, ids: Sequence[int]) -> Scored:
        """Of two tokens or more.

        Raises: ConversationTooLong: for the model's context; EndpointError: no numbers of these ids, after all
        attempts.
        """
        if self._form is None:
            async with self._finding:
                if self._form is None:
                    return await self._scored_somehow(ids)
        return await self._counted(partial(self._scored, ids, self._form))

    async def _scored_somehow(self, ids: Sequence[int]) -> Scored:
        problems = []
        for form in FORMS:
            try:
                found = await self._counted(partial(self._scored, ids, form))
            except NotScored as error:
                problems.append(f"with {', '.join(form)}: {error}")
            else:
                self._form = form
                return found
        raise EndpointError("no log-probabilities of given tokens; " + "; ".join(problems))

    async def differing(self, tokens: Sequence[tuple[int, str]]) -> str | None:
        """How the model's tokens differ from these ids and texts, as far as its server says; raises as :meth:`score`.

        Blanks at the ends count for nothing, nor do parts of characters: servers show them in ways of their own.
        """
        found = (await self.score([token for token, _ in tokens])).texts
        for (token, own), other in zip(tokens[1:], found, strict=True):
            if isinstance(other, str) and BROKEN not in own + other and own.strip() != other.strip():
                return f"token {token} is {own!r} here, and {self._clean(other)!r} at {self.address.url}"
        return None

    async def _scored(self, ids: Sequence[int], form: Mapping[str, Any]) -> Scored:
        body = {"model": self.address.model, "prompt": list(ids), **ALONE, **form, **self.options.request}
        status, content = await self._ask("POST", "completions", body)
        if status != 200:
            refused = self._refused(status, content)
            raise refused if isinstance(refused, ConversationTooLong) else NotScored(str(refused))
        try:
            answer = parse(content)
        except ValueError:
            raise Passing(f"{self.address.url} sent no JSON") from None
        try:
            choice = answer["choices"][0]
            found = _named(choice, ids) if "prompt_logprobs" in form else _echoed(choice, ids)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else "they are not there"
            raise NotScored(f"{self.address.url} sent no log-probabilities of the prompt: {why}") from None
        return found


def _named(choice: Any, ids: Sequence[int]) -> Scored:
    """Raises: ValueError: they are of other tokens."""
    given = choice["prompt_logprobs"]
    if len(given) != len(ids):
        raise ValueError(f"{len(given)} for {len(ids)} tokens")
    found = []
    for place, (token, there) in enumerate(zip(ids[1:], given[1:], strict=True), 1):
        if str(token) not in there:
            raise ValueError(f"that of token {token}, at place {place}, is missing")
        found.append(there[str(token)])
    return Scored([_number(each["logprob"]) for each in found], [each.get("decoded_token") for each in found])


def _echoed(choice: Any, ids: Sequence[int]) -> Scored:
    """Raises: ValueError: they are as many as other tokens."""
    given, texts = choice["logprobs"]["token_logprobs"], choice["logprobs"].get("tokens") or [None] * len(ids)
    if not len(given) == len(texts) == len(ids):
        raise ValueError(f"{len(given)} for {len(ids)} tokens")
    return Scored([_number(each) for each in given[1:]], texts[1:])


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError
    if not LEAST <= given <= MOST:
        raise ValueError("some are no numbers, or no logarithms of probabilities")
    return float(given)
