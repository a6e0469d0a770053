"""The seat of a model that an agent program asks for completions: the program's messages are the prompts.

Guarantees (each has a test):

1. Each completion that the program received is a turn, with the ids and log-probabilities of the engine. A prompt that
   continues the last reply stays in its row, any other begins one (:mod:`rllib_lmgame.policies.chat.requested`).
2. A completion that the program did not wait for (a time-out) is no turn, as if it had not been sampled.
3. A request without a possible reply, for example one longer than the context, is answered with an error. It is no
   turn, and the program continues.
"""

from __future__ import annotations

from dataclasses import dataclass

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.endpoints.completions import RequestError
from rllib_lmgame.envs.contract.session import AskingProgram, GameSession, Observation
from rllib_lmgame.policies.chat.format import Prompt
from rllib_lmgame.policies.chat.requested import RequestedConversation
from rllib_lmgame.rollouts.seats import GameCall, LanguageModelSeat


@dataclass
class ProgramSeat(LanguageModelSeat):
    """A seat whose observations are the requests of ``program``."""

    program: AskingProgram = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.chat = self.chat.for_program()
        super().__post_init__()
        self._requested = RequestedConversation(self.chat)

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str | None:
        while (request := self.program.request) is not None:
            try:
                prompt = self._requested.prompt(request)
            except RequestError as refusal:
                await call("refuse", self.program.refuse, refusal)
                continue
            response_ids = await self._replied(session, observation, prompt, call)
            if await call("deliver", self.program.deliver, self._requested.read(response_ids)):
                return self._requested.reply(response_ids).action
            self.turns.pop()
        return None

    def out_of_tokens(self, session: GameSession, prompt: Prompt, needed: int) -> Exception:
        request = self.program.request
        if not self.turns and request is not None and prompt.max_tokens == request.max_tokens:
            return ConfigError(
                "config.env",
                f"a reply of {session.game_id} has {needed} tokens or more; max_tokens of the program's request is "
                f"{request.max_tokens}",
            )
        return super().out_of_tokens(session, prompt, needed)

    def _last_prompt(self, observation: Observation) -> Prompt:
        return self._requested.final_prompt()
