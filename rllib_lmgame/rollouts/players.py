"""Players that take seats, in training, measures, tournaments and the terminal.

Guarantees for agent programs, whose messages are the prompts (:class:`ProgramSeat`; each has a test):

1. Each completion that the program received is a turn, with the ids and log-probabilities of the engine. A prompt that
   continues the last reply stays in its row, any other begins one.
2. A completion that the program did not wait for (a time-out) is no turn, as if it had not been sampled.
3. A request without a possible reply, for example one longer than the context, is answered with an error. It is no
   turn, and the program continues.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.endpoints.completions import RequestError
from rllib_lmgame.envs.contract.session import AskingProgram, GameSession, Observation
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat.api_conversations import APIConversation
from rllib_lmgame.policies.chat.format import ChatFormat, Prompt
from rllib_lmgame.policies.options import LANGUAGE_MODEL
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, ScriptedPlayer, make_scripted_player
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.options import GameConfig, TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, stable_seed
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, LanguageModelSeat, ReplySource, Seat, scripted_move


@dataclass
class ProgramSeat(LanguageModelSeat):
    """A seat whose observations are the requests of ``program``."""

    program: AskingProgram = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.chat = self.chat.for_program()
        super().__post_init__()
        self._requested = APIConversation(self.chat)

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
            asked = f"max_tokens of the program's request is {request.max_tokens}"
            return ConfigError("config.env", f"a reply of {session.game_id} has {needed} tokens or more; {asked}")
        return super().out_of_tokens(session, prompt, needed)

    def _last_prompt(self, observation: Observation) -> Prompt:
        return self._requested.final_prompt()


class Player(ABC):
    """A named player that takes seats in any number of games at once; ``source`` is what the user wrote.

    It is an asynchronous context that loads and frees what the player needs, in one event loop.
    """

    def __init__(self, name: str, source: str | None = None) -> None:
        self.name = name
        self.source = name if source is None else source

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:  # noqa: B027
        """Free what was loaded."""

    @property
    def assignment(self) -> AgentAssignment:
        return AgentAssignment(self.name, self.source)

    def in_game(self, game: GameConfig) -> Player:
        """The player with the chat options of the game's entry. Raises: ConfigError."""
        return self

    @abstractmethod
    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """Take ``agent``'s seat in one game; ``seed`` seeds the player's draws."""

    def identity(self) -> dict[str, Any]:
        """Plain data that identifies the player."""
        return {"player": self.source}

    def counts(self) -> dict[str, int]:
        """Its requests, tokens and failures; empty for players without costs."""
        return {}


def seat_seed(plan: EpisodePlan, agent: str) -> int:
    """Seed of a player's draws in one episode; another one if the episode is replaced."""
    return stable_seed(plan.seed, plan.episode_id, agent, "player")


def take_seats(
    session: GameSession,
    plan: EpisodePlan,
    player_of: Callable[[AgentAssignment], Player],
    seed: Callable[[EpisodePlan, str], int] = seat_seed,
) -> dict[str, Seat]:
    """The seats of one game; ``seed`` gives the seed of each player's draws.

    Raises: EpisodeFailed: the game has other agents than the assignments.
    """
    if set(plan.assignments) != set(session.agent_ids):
        there, planned = (", ".join(agents) or "none" for agents in (session.agent_ids, plan.assignments))
        said = f"{session.game_id} has the seats {there}; the assignments of the episode are for {planned}"
        raise EpisodeFailed(StopReason.ENV_ERROR, said)
    return {
        agent: player_of(plan.assignments[agent]).seat(session, plan, agent, seed(plan, agent))
        for agent in session.agent_ids
    }


Replies = Callable[[EpisodePlan, int], ReplySource]
"""Gives the source of a language model's replies in one episode; the number is the seed of its seat."""


class LanguageModel(Player):
    """A language model; ``options`` have the penalties and which limits bootstrap, ``temperature`` is a game's own."""

    def __init__(
        self,
        name: str,
        source: str | None,
        chat: ChatFormat,
        replies: Replies,
        options: TextRolloutOptions,
        temperature: float | None = None,
    ) -> None:
        super().__init__(name, source)
        self._chat = chat
        self._replies = replies
        self._options = options
        self._temperature = temperature

    @property
    def assignment(self) -> AgentAssignment:
        return AgentAssignment(self.name, LANGUAGE_MODEL, member=self.source)

    def chat_in(self, game_id: str) -> ChatFormat:
        """The chat format in a game."""
        return self._chat

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        source = self._replies(plan, seed)
        asking = session.program
        seat = LanguageModelSeat if asking is None else partial(ProgramSeat, program=asking)
        return seat(
            agent,
            session.roles[agent],
            self.name,
            chat=self.chat_in(session.game_id).for_game(session.functions),
            source=source,
            instructions=session.instructions,
            game_id=session.game_id,
            episode_id=plan.episode_id,
            seed=seed,
            options=self._options,
            temperature=self._temperature,
        )


def sampled_in(
    game: GameConfig, inference: InferenceOptions, temperature: float | None
) -> tuple[InferenceOptions, float | None]:
    """Options and ``temperature`` for :class:`.EngineReplies` in a game that may have its own temperature."""
    if game.temperature is None:
        return inference, temperature
    own = inference.model_copy(update={"temperature": game.temperature})
    return own, None if temperature is None else game.temperature


class Scripted(Player):
    """A scripted player, made anew for each seat.

    ``source`` is a name or import path for :mod:`rllib_lmgame.policies.scripted`, unless ``make`` makes the player.
    ``limit_s`` is the time limit of one move; by default that of other calls into the game.
    """

    def __init__(
        self,
        name: str,
        source: str | None = None,
        *,
        limit_s: float | None = None,
        make: Callable[[], ScriptedPlayer] | None = None,
    ) -> None:
        super().__init__(name, source)
        self._limit_s = None if self.source in SCRIPTED_PLAYERS else limit_s
        self._make = make

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        player = make_scripted_player(self.source) if self._make is None else self._make()
        return ScriptedSeat(agent, session.roles[agent], self.name, player=player, seed=seed, limit_s=self._limit_s)


@dataclass
class ScriptedSeat(Seat):
    """A scripted player's seat; ``limit_s`` as for :class:`Scripted`."""

    player: ScriptedPlayer = None  # type: ignore[assignment]
    seed: int = 0
    limit_s: float | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str | None:
        what = "expert_action"
        if self.limit_s is not None:
            call, what = GameCalls(type(self.player).__name__, False, self.limit_s, "--time-limit"), "a move"
        move = (scripted_move, self.player, session, self.agent_id, observation, self.rng)
        action, self.thought = await call(what, *move)
        return action
