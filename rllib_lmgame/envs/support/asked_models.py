"""Language models behind an endpoint that a game asks: its judge, its oracle.

1. A question ends: with a text, or with :class:`GameError` after bounded attempts and time. The episode is then dropped
   and counted; nobody is paid for a judge that is not there.
2. What players said never becomes structure of the model's prompt (:func:`harmless`).
"""

from __future__ import annotations

import asyncio
import re

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import time_left
from rllib_lmgame.endpoints.address import ENDPOINT, EndpointOptions, read_address
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.support.loop_thread import waited_for

MODEL = f"{ENDPOINT}MODEL@URL"
"""How an option names a language model, for messages."""

TIME_LIMIT_S = 60.0
"""Of one attempt."""

SHARE_OF_TIME = 0.9
"""Of what the game has left for its step, for all attempts together, so that the model is named and not the game."""

MAX_TOKENS = 1024
"""Of one answer."""

ATTEMPTS = EndpointOptions(attempts=3)
HURRIED = EndpointOptions(attempts=1)
THOUGHT_END = "</think>"
MARK = re.compile(r"([<\[\]])(?=\S)")


def harmless(text: str) -> str:
    """A player's words with what control tokens and tags are made of broken apart."""
    return MARK.sub(r"\1 ", text)


def is_model(source: str) -> bool:
    """Whether an option names a language model, and no function or class."""
    return source.startswith(ENDPOINT)


class AskedModel:
    """A language model that a game asks, greedily.

    Args:
        source: ``openai:MODEL@URL`` or ``openai:MODEL@URL#VARIABLE`` (the environment variable of its key).
        key: Option that names it.

    Raises:
        ConfigError: if that names no model, is no address, or the variable holds no key.
    """

    def __init__(self, source: str, key: str) -> None:
        if not is_model(source):
            raise ConfigError(key, f"{source!r} names no language model; write {MODEL}")
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

    def ask(self, instructions: str, question: str) -> str:
        """Its reply, without the reasoning before it. Raises: GameError: it gives none."""

        from rllib_lmgame.endpoints.client import EndpointClient, EndpointError

        left = time_left()
        limit_s = None if left is None else SHARE_OF_TIME * left

        async def asked() -> str:
            messages = [{"role": "system", "content": instructions}, {"role": "user", "content": question}]
            client = EndpointClient(self._address, ATTEMPTS, TIME_LIMIT_S, 1)
            async with asyncio.timeout(limit_s), client:
                return (await client.answer(messages, temperature=0.0, max_tokens=MAX_TOKENS)).text

        try:
            return waited_for(asked()).rpartition(THOUGHT_END)[2]
        except TimeoutError:
            of_step = "what was left of the step's time (`text_rollouts.env_step_timeout_s`)"
            raise GameError(f"no answer of {self.name} within {limit_s:.3g} s, {of_step}") from None
        except EndpointError as error:
            raise GameError(f"no answer of {self._address.model}: {error}") from None
