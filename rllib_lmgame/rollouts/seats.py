"""Who sits at the table: a seat turns observations into action texts and, for language models, into turn records."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rllib_lmgame.envs.session import GameSession, Observation
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.chat import ChatFormat, Conversation, Prompt
from rllib_lmgame.policies.scripted import ScriptedPlayer
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.trajectory import Turn

Generate = Callable[[GenerationRequest], Awaitable[Generation]]


class EpisodeFailed(Exception):
    """The episode cannot be finished through no fault of the player; it is dropped, counted and replaced."""

    def __init__(self, reason: StopReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OutOfTokens(Exception):
    """The player has no tokens left for another reply; the episode is truncated."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass
class Seat:
    """Common to all seats.

    Attributes:
        agent_id: Seat in the game.
        role: Kind of seat.
        module_id: Policy that plays it.
        episode_return: Sum of all rewards, unscaled.
        invalid_actions: Actions the game refused.
        turns_played: Actions handed in.
    """

    agent_id: str
    role: str
    module_id: str
    episode_return: float = 0.0
    invalid_actions: int = 0
    turns_played: int = 0

    async def act(self, session: GameSession, observation: Observation) -> str:
        """The action text for ``observation``."""
        raise NotImplementedError

    def reward(self, value: float) -> None:
        """Credit the last action."""
        self.episode_return += value

    def finish(self, session: GameSession, terminated: bool) -> None:
        """The episode is over."""


@dataclass
class ScriptedSeat(Seat):
    """A scripted player's seat."""

    player: ScriptedPlayer = None  # type: ignore[assignment]
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    async def act(self, session: GameSession, observation: Observation) -> str:
        return self.player.act(session, self.agent_id, observation, self.rng)


class ReplySource(Protocol):
    """Where the ids of a reply come from."""

    async def reply(self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt) -> Generation:
        """One reply to ``prompt``."""


@dataclass
class EngineReplies:
    """Replies sampled by an inference engine.

    Args:
        generate: Sends a request to the engine.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus sampling.
        top_k: Top-k sampling; 0 is off.
        legal_moves_only: Constrain decoding to the game's legal moves.
        seeded: Give every request a seed of its own.
    """

    generate: Generate
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    legal_moves_only: bool = False
    seeded: bool = False

    async def reply(self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt) -> Generation:
        chat = seat.chat
        turn = len(seat.turns)
        sampling = SamplingSpec(
            max_tokens=prompt.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop_token_ids=chat.stop_token_ids,
            seed=stable_seed(seat.episode_id, seat.agent_id, turn) if self.seeded else None,
        )
        request_id = f"{seat.episode_id}/{seat.agent_id}/{turn}"
        request = GenerationRequest(request_id, prompt.ids, sampling, self._choices(seat, session, observation, prompt))
        generation = await self.generate(request)
        if generation.stop_reason is StopReason.ENGINE_ERROR:
            raise EpisodeFailed(StopReason.ENGINE_ERROR, generation.error or "the engine failed")
        return generation

    def _choices(
        self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt
    ) -> tuple[tuple[int, ...], ...] | None:
        if not self.legal_moves_only:
            return None
        if not observation.legal_actions:
            raise ConfigError("config.text_rollouts.legal_moves_only", f"{session.game_id} does not list its legal actions")
        choices = tuple(tuple(seat.chat.reply_ids(action)) for action in observation.legal_actions)
        fitting = tuple(choice for choice in choices if len(choice) <= prompt.max_tokens)
        if not fitting:
            raise OutOfTokens(StopReason.CONTEXT_OVERFLOW if prompt.out_of_context else StopReason.TOKEN_BUDGET)
        return fitting


@dataclass
class ExpertReplies:
    """Replies of a scripted player, written in the chat format: the data of supervised learning."""

    player: ScriptedPlayer
    rng: random.Random

    async def reply(self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt) -> Generation:
        action = self.player.act(session, seat.agent_id, observation, self.rng)
        ids = np.asarray(seat.chat.reply_ids(action), np.int32)
        if len(ids) > prompt.max_tokens:
            raise OutOfTokens(StopReason.CONTEXT_OVERFLOW if prompt.out_of_context else StopReason.TOKEN_BUDGET)
        return Generation("", ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0)


@dataclass
class LanguageModelSeat(Seat):
    """A language model's seat: keeps the conversation as token ids and a record of every turn."""

    chat: ChatFormat = None  # type: ignore[assignment]
    source: ReplySource = None  # type: ignore[assignment]
    instructions: str = ""
    episode_id: str = ""
    format_penalty: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    format_errors: int = 0
    final_prompt: Prompt | None = None

    def __post_init__(self) -> None:
        self.conversation = Conversation(self.chat, self.instructions)
        self._note: str | None = None
        self._pending_final: Prompt | None = None

    async def act(self, session: GameSession, observation: Observation) -> str:
        prompt = self.conversation.prompt(observation, self._note)
        if prompt.max_tokens < 1:
            if not self.turns and prompt.out_of_context:
                raise ConfigError(
                    "config.language_model.context_length",
                    f"the first prompt of {session.game_id} has {len(prompt.ids)} tokens, the context holds "
                    f"{self.chat.options.context_length}; set context_length to at least {len(prompt.ids) + self.chat.options.max_tokens_per_turn}",
                )
            self._pending_final = prompt
            raise OutOfTokens(StopReason.CONTEXT_OVERFLOW if prompt.out_of_context else StopReason.TOKEN_BUDGET)
        try:
            generation = await self.source.reply(self, session, observation, prompt)
        except OutOfTokens:
            self._pending_final = prompt
            raise
        parsed = self.conversation.reply(generation.response_ids)
        self.texts.append(parsed.action if parsed.action is not None else "")
        self.turns.append(
            Turn(
                prompt_ids=prompt.delta,
                response_ids=generation.response_ids,
                rollout_logprobs=generation.logprobs,
                policy_version=generation.policy_version,
                new_row=prompt.new_row,
                stop_reason=generation.stop_reason.value,
            )
        )
        self._note = parsed.error
        if parsed.action is None:
            self.format_errors += 1
            self.turns[-1].reward += self.format_penalty
            return ""
        return parsed.action

    def reward(self, value: float) -> None:
        super().reward(value)
        if self.turns:
            self.turns[-1].reward += value

    def finish(self, session: GameSession, terminated: bool) -> None:
        if not terminated and self.turns:
            self.final_prompt = self._pending_final or self.conversation.prompt(session.observe(self.agent_id), self._note)
