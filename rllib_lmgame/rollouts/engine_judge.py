"""Policies of the run as judges and oracles of its games, on the engines that play."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.step_timer import WaitedTooLong, waiting
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.support.asked_models import MAX_TOKENS
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.guard import Part, Source
from rllib_lmgame.rollouts.seats import Generate

SLACK_S = 60.0
"""Time that a question may take beyond the engine's own limits."""

AS_ASKED: dict[str, Any] = {"reply_prefill": "", "stop_on_answer": False, "demonstrations": 0}
"""Options that differ for questions of a game, which reads the whole reply."""


@dataclass(frozen=True)
class EngineAnswers:
    """Asks policies from the threads of games; ``loop`` is the event loop that plays them.

    Args:
        chat: Policy -> chat format, with :data:`AS_ASKED`.
        generate: Policy -> function that asks its engines.
        limit_s: Time limit of one request.
    """

    chat: Callable[[str], ChatFormat]
    generate: Callable[[str], Generate]
    limit_s: float
    loop: asyncio.AbstractEventLoop

    def __call__(self, policy: str, instructions: str, question: str) -> str:
        """The greedy reply; the wait does not count as time of the game.

        Raises:
            GameError: the question is too long for the policy.
            WaitedTooLong: the engines give no reply.
        """
        answer = asyncio.run_coroutine_threadsafe(self._answer(policy, instructions, question), self.loop)
        try:
            with waiting():
                return answer.result(2 * self.limit_s + SLACK_S)
        except (TimeoutError, CancelledError):
            raise WaitedTooLong(f"policy {policy!r} gave no answer while its games were played") from None

    async def _answer(self, policy: str, instructions: str, question: str) -> str:
        chat = self.chat(policy)
        ids = chat.opening_ids((Part(Source.GAME, instructions),), (Part(Source.GAME, question),))
        room = min(MAX_TOKENS, chat.options.context_length - len(ids))
        if room < 1:
            longest = f"more than its context_length of {chat.options.context_length}"
            raise GameError(f"the question to policy {policy!r} has {len(ids)} tokens, {longest}")
        request = GenerationRequest(f"asked-{uuid.uuid4().hex}", ids, SamplingSpec(room, 0.0, **chat.ends))
        generation = await self.generate(policy)(request)
        if generation.stop_reason is StopReason.ENGINE_ERROR:
            raise WaitedTooLong(f"policy {policy!r}: {generation.error or 'the engine failed'}")
        return chat.read(generation.response_ids)
