"""A teacher behind an endpoint, which is asked for the log-probabilities of the policy's own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.endpoints.address import EndpointOptions, read_address
from rllib_lmgame.endpoints.client import EndpointError
from rllib_lmgame.endpoints.scoring import ScoringClient
from rllib_lmgame.envs.support.loop_thread import waited_for
from rllib_lmgame.learners.options import TEACHER

if TYPE_CHECKING:
    from rllib_lmgame.learners.data.batching import TokenBatch

T = TypeVar("T")

PATIENT = EndpointOptions(attempts=8, max_answer_bytes=64 << 20)
"""About a minute of waits: a server may be started anew."""
TIME_LIMIT_S = 120.0
"""Of one attempt at one row, which may wait for others of the server's users."""
HURRIED, SHORT_LIMIT_S = EndpointOptions(attempts=1), 30.0
"""Before a run."""
AT_ONCE = 16
"""Rows that one learner asks for at the same time."""
COMPARED = 256
"""Tokens of the vocabulary, at most, whose texts are compared before a run."""


class TeacherClient:
    """The teacher ``openai:MODEL@URL``, or ``openai:MODEL@URL#VARIABLE`` of its key's environment variable.

    Raises: ConfigError: that is no address, or the variable holds no key.
    """

    def __init__(self, model: str, options: EndpointOptions = PATIENT, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._client = ScoringClient(read_address(model, TEACHER), options, time_limit_s, AT_ONCE)

    def logprobs(self, batch: TokenBatch) -> np.ndarray:
        """Of a batch's action tokens, float32 ``[A]``; each row is sent once, up to the last of them.

        Raises: EndpointError: no numbers of a row after all attempts.
        """
        found = np.full(batch.num_actions, np.nan, np.float32)

        async def ask_all() -> None:
            room = asyncio.Semaphore(AT_ONCE)

            async def ask(ids: np.ndarray, places: np.ndarray, slots: slice) -> None:
                async with room:
                    scored = await self._client.score(ids.tolist())
                found[slots] = np.asarray(scored.logprobs)[places - 1]

            async with asyncio.TaskGroup() as group:
                for row in batch.action_rows():
                    group.create_task(ask(*row))

        try:
            self._waited_for(ask_all())
        except EndpointError as error:
            raise EndpointError(f"the teacher said nothing of a row: {error}") from None
        return found

    def check(self) -> None:
        """Raises: ConfigError: nobody answers, or the key is refused."""
        try:
            self._waited_for(self._client.check())
        except ConfigError as error:
            raise ConfigError(TEACHER, error.message) from None

    def other_vocabulary(self, tokenizer: Any, context_length: int) -> str | None:
        """How its tokens differ from a policy's, as far as its server says.

        Raises: ConfigError: it gives no log-probabilities, or knows not all of them.
        """
        size = len(tokenizer)
        ids = np.unique(np.linspace(0, size - 1, max(2, min(COMPARED, context_length - 1, size))).astype(int)).tolist()
        try:
            return self._waited_for(self._client.differing([(each, tokenizer.decode([each])) for each in ids]))
        except EndpointError as error:
            raise ConfigError(TEACHER, str(error)) from None

    def _waited_for(self, asked: Coroutine[Any, Any, T]) -> T:
        async def connected() -> T:
            async with self._client:
                return await asked

        try:
            return waited_for(connected())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
