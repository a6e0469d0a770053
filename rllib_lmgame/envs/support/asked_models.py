"""Language models that a game asks: its judge, its oracle.

1. A question ends: with a text, or with :class:`GameError` after bounded attempts and time. The episode is then dropped
   and counted; nobody is paid for a judge that is not there.
2. What players said never becomes structure of the model's prompt (:func:`harmless`).
3. A policy of the run is asked only on the engines that play the game (:class:`Policies`), never loaded here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.step_timer import time_left
from rllib_lmgame.endpoints.address import ENDPOINT, EndpointOptions, read_address
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.support.loop_thread import waited_for

POLICY = "policy:"
"""Begins what names a policy of the run."""

MODELS = f"{ENDPOINT}MODEL@URL or {POLICY}NAME"
"""How an option names a language model, for messages."""

TIME_LIMIT_S = 60.0
"""Of one attempt."""

SHARE_OF_TIME = 0.9
"""Of what the game has left for its step, for all attempts together, so that the model is named and not the game."""

MAX_TOKENS = 1024
"""Of one answer."""

OF_STEP = "what was left of the step's time (`text_rollouts.env_step_timeout_s`)"
ATTEMPTS = EndpointOptions(attempts=3)
HURRIED = EndpointOptions(attempts=1)
THOUGHT_END = "</think>"
MARK = re.compile(r"([<\[\]])(?=\S)")


def harmless(text: str) -> str:
    """A player's words with what control tokens and tags are made of broken apart."""
    return MARK.sub(r"\1 ", text)


@dataclass(frozen=True)
class Policies:
    """The language models of a run, as its games may ask them.

    Attributes:
        names: How they are called.
        ask: A policy's reply to instructions and a question. ``None``: the games are only looked at, before the run.
    """

    names: tuple[str, ...]
    ask: Callable[[str, str, str], str] | None = None


_of_run: ContextVar[Policies | None] = ContextVar("policies of the run", default=None)


@contextmanager
def policies_of_run(policies: Policies) -> Iterator[None]:
    """While games of a run are played or looked at."""
    before = _of_run.set(policies)
    try:
        yield
    finally:
        _of_run.reset(before)


class Asked(Protocol):
    """A language model, asked greedily; made of its source and the option that names it."""

    @property
    def name(self) -> str:
        """As messages call it."""

    def check(self) -> str:
        """Whether it is there, in a few words. Raises: ConfigError: it is not."""

    def answer(self, instructions: str, question: str) -> str:
        """Its reply. Raises: GameError: it gives none."""


class AskedModel:
    """A language model that a game asks.

    Args:
        source: ``openai:MODEL@URL``, ``openai:MODEL@URL#VARIABLE`` (the environment variable of its key), or
            ``policy:NAME``, a policy of the run.
        key: Option that names it.

    Raises:
        ConfigError: if that names no model, there is none, it is no address, or the variable holds no key.
    """

    def __init__(self, source: str, key: str) -> None:
        if not is_model(source):
            raise ConfigError(key, f"{source!r} names no language model; write {MODELS}")
        self._asked: Asked = (PolicyModel if source.startswith(POLICY) else EndpointModel)(source, key)

    @property
    def name(self) -> str:
        """As messages call it."""
        return self._asked.name

    def check(self) -> str:
        """Whether it is there, in a few words. Raises: ConfigError: it is not."""
        return self._asked.check()

    def ask(self, instructions: str, question: str, *, unasked: str = "") -> str:
        """Its reply, without the reasoning before it; ``unasked`` where a game is only looked at, before the run whose
        policy it would ask.

        Raises:
            GameError: it gives none.
        """
        if isinstance(self._asked, PolicyModel) and self._asked.of_run().ask is None:
            return unasked
        return self._asked.answer(instructions, question).rpartition(THOUGHT_END)[2]


def most_s() -> float | None:
    """Seconds that an answer may take, all attempts together; ``None`` if the game's step has no limit."""
    left = time_left()
    return None if left is None else SHARE_OF_TIME * left


def is_model(source: str) -> bool:
    """Whether an option names a language model, and no function or class."""
    return source.startswith((ENDPOINT, POLICY))


class PolicyModel:
    """A policy of the run: an :class:`Asked`."""

    def __init__(self, source: str, key: str) -> None:
        self._key, self._policy = key, source.removeprefix(POLICY)
        if not self._policy:
            raise ConfigError(key, f"{source!r} names no policy; write {POLICY}NAME, one of config.policies")

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"policy {self._policy!r}"

    def check(self) -> str:
        """That the run has it, in a few words. Raises: ConfigError: there is no run, or no such policy."""
        try:
            self.of_run()
        except GameError as error:
            raise ConfigError(self._key, str(error)) from None
        return f"asks {self.name} of the run"

    def answer(self, instructions: str, question: str) -> str:
        """Its reply. Raises: GameError, WaitedTooLong: it gives none."""
        ask = self.of_run().ask
        assert ask is not None, "AskedModel.ask looks first"
        return ask(self._policy, instructions, question)

    def of_run(self) -> Policies:
        """The policies that play. Raises: GameError: nobody plays, or it is not among them."""
        policies = _of_run.get()
        if policies is None:
            raise GameError(
                f"{self.name} is asked on the engines of a run, and here is none; name a model as {ENDPOINT}MODEL@URL"
            )
        if self._policy not in policies.names:
            there = ", ".join(policies.names) or "none"
            hint = did_you_mean(self._policy, policies.names, f"its language models are {there}")
            raise GameError(f"the run has no language model {self._policy!r} among its policies; {hint}")
        return policies


class EndpointModel:
    """The model behind an endpoint: an :class:`Asked`."""

    def __init__(self, source: str, key: str) -> None:
        self._key = key
        self._address = read_address(source, key)
        self._address.key()

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self._address.model} at {self._address.url}"

    def check(self) -> str:
        """Whether it is there, in a few words. Raises: ConfigError: nobody answers, or the key is refused."""

        from rllib_lmgame.endpoints.client import EndpointClient

        async def checked() -> None:
            async with EndpointClient(self._address, HURRIED, TIME_LIMIT_S / 6, 1) as client:
                await client.check()

        try:
            waited_for(checked())
        except ConfigError as error:
            raise ConfigError(self._key, error.message) from None
        return f"asks {self.name}"

    def answer(self, instructions: str, question: str) -> str:
        """Its reply. Raises: GameError: it gives none."""

        from rllib_lmgame.endpoints.client import EndpointClient, EndpointError

        limit_s = most_s()

        async def asked() -> str:
            messages = [{"role": "system", "content": instructions}, {"role": "user", "content": question}]
            client = EndpointClient(self._address, ATTEMPTS, TIME_LIMIT_S, 1)
            async with asyncio.timeout(limit_s), client:
                return (await client.answer(messages, temperature=0.0, max_tokens=MAX_TOKENS)).text

        try:
            return waited_for(asked())
        except TimeoutError:
            raise GameError(f"no answer of {self.name} within {limit_s:.3g} s, {OF_STEP}") from None
        except EndpointError as error:
            raise GameError(f"no answer of {self._address.model}: {error}") from None
