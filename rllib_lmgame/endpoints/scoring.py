"""Log-probabilities of given tokens, by vLLM's OpenAI-compatible server: ids in, a number for each of them out.

Its ``prompt_logprobs`` name the ids that they are of. They are at temperature 1, over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.endpoints.client import EndpointClient, EndpointError, Passing

ALONE: Mapping[str, Any] = {"max_tokens": 0, "echo": True, "prompt_logprobs": 0}
"""Of a request: the prompt is all that is wanted."""

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


class ScoringClient(EndpointClient):
    """A client that asks for log-probabilities."""

    async def score(self, ids: Sequence[int]) -> Scored:
        """Of two tokens or more.

        Raises: ConversationTooLong: for the model's context; EndpointError: no numbers of these ids, after all
        attempts.
        """
        return await self._counted(partial(self._scored, ids))

    async def differing(self, tokens: Sequence[tuple[int, str]]) -> str | None:
        """How the model's tokens differ from these ids and texts, as far as its server says; raises as :meth:`score`.

        Blanks at the ends count for nothing, nor do parts of characters: servers show them in ways of their own.
        """
        found = (await self.score([token for token, _ in tokens])).texts
        for (token, own), other in zip(tokens[1:], found, strict=True):
            if isinstance(other, str) and BROKEN not in own + other and own.strip() != other.strip():
                return f"token {token} is {own!r} here, and {self._clean(other)!r} at {self.address.url}"
        return None

    async def _scored(self, ids: Sequence[int]) -> Scored:
        body = {"model": self.address.model, "prompt": list(ids), **ALONE, **self.options.request}
        status, content = await self._ask("POST", "completions", body)
        if status != 200:
            raise self._refused(status, content)
        try:
            answer = parse(content)
        except ValueError:
            raise Passing(f"{self.address.url} sent no JSON") from None
        try:
            return _read(answer["choices"][0]["prompt_logprobs"], ids)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else "they are not there"
            raise EndpointError(f"{self.address.url} sent no log-probabilities of the prompt: {why}") from None


def _read(given: Any, ids: Sequence[int]) -> Scored:
    """Raises: ValueError: they are of other tokens."""
    if len(given) != len(ids):
        raise ValueError(f"{len(given)} for {len(ids)} tokens")
    found = []
    for place, (token, there) in enumerate(zip(ids[1:], given[1:], strict=True), 1):
        if str(token) not in there:
            raise ValueError(f"that of token {token}, at place {place}, is missing")
        found.append(there[str(token)])
    return Scored([_number(each["logprob"]) for each in found], [each.get("decoded_token") for each in found])


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError
    if not LEAST <= given <= MOST:
        raise ValueError("some are no numbers, or no logarithms of probabilities")
    return float(given)
