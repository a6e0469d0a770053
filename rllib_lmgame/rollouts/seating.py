"""Seats from line-ups: the one place where players are sat at a table, and where sampling follows
from a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.scripted import ScriptedPlayer, make_scripted_player
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment, stable_seed
from rllib_lmgame.rollouts.restarts import RecordedPlayer, RecordedReplies
from rllib_lmgame.rollouts.seats import (
    EngineReplies,
    EpisodeFailed,
    Generate,
    LanguageModelSeat,
    ReplySource,
    ScriptedSeat,
    Seat,
)
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LANGUAGE_MODEL
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

Replies = Callable[[SeatAssignment, EpisodePlan, int], ReplySource]
"""Where the replies of a language model in a seat come from; the number is the seat's own seed."""


class Guest(AbstractAsyncContextManager[Any], Protocol):
    """Somebody who is no policy of the run. What it loads when it is entered is freed when it is left."""

    @property
    def assignment(self) -> SeatAssignment:
        """How it stands in line-ups, with its own name for ``module_id``."""

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str) -> Seat:
        """Take ``agent``'s seat in one game."""


Guests = Mapping[str, Guest]
"""By name."""


def seat_seed(plan: EpisodePlan, agent: str) -> int:
    """Seed of what a player draws in one episode: another one when the episode is played again."""
    return stable_seed(plan.seed, plan.episode_id, agent, "player")


def table_seed(plan: EpisodePlan, agent: str) -> int:
    """The same at a table, where the seed of the level alone says which game it is."""
    return stable_seed(plan.seed, agent, "player")


def _no_language_models(*args: object) -> object:
    raise TypeError("only scripted players sit at this table")


@dataclass(frozen=True)
class Seating:
    """Sits players down.

    Attributes:
        chat: Policy -> its chat format; asked for language models only, as is ``replies``.
        replies: Where a language model's replies come from.
        options: Penalties, and which limits bootstrap; by default none.
        scripted: Makes a scripted player by name, a new one for every seat.
        guests: Who is no policy of the run; entered by the caller.
        seed: Of what a player draws.
    """

    chat: Callable[[str], ChatFormat] = _no_language_models  # type: ignore[assignment]
    replies: Replies = _no_language_models  # type: ignore[assignment]
    options: TextRolloutOptions = field(default_factory=TextRolloutOptions)
    scripted: Callable[[str], ScriptedPlayer] = make_scripted_player
    seed: Callable[[EpisodePlan, str], int] = seat_seed
    guests: Guests = field(default_factory=dict)

    def seats(self, session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        """Everybody's seat.

        Raises:
            EpisodeFailed: if the game has other seats than the plan's line-up.
        """
        if set(plan.line_up) != set(session.agent_ids):
            there, planned = (", ".join(agents) or "none" for agents in (session.agent_ids, plan.line_up))
            raise EpisodeFailed(
                StopReason.ENV_ERROR,
                f"{session.game_id} has the seats {there}; the line-up of the episode is for {planned}",
            )
        return {agent: self.seat(session, plan, agent) for agent in session.agent_ids}

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str) -> Seat:
        """The seat of one agent, for whom the plan's line-up has an assignment."""
        assignment, role = plan.line_up[agent], session.roles[agent]
        if assignment.module_id in self.guests:
            return self.guests[assignment.module_id].seat(session, plan, agent)
        seed = self.seed(plan, agent)
        if assignment.player != LANGUAGE_MODEL:
            return ScriptedSeat(agent, role, assignment.module_id, player=self._player(plan, agent), seed=seed)
        return LanguageModelSeat(
            agent,
            role,
            assignment.module_id,
            chat=self.chat(assignment.module_id),
            source=self._source(plan, agent, seed),
            instructions=session.instructions,
            episode_id=plan.episode_id,
            seed=seed,
            format_penalty=self.options.format_penalty,
            bootstrap_turn_limit=self.options.bootstrap_turn_limit,
            bootstrap_token_budget=self.options.bootstrap_token_budget,
        )

    def _player(self, plan: EpisodePlan, agent: str) -> ScriptedPlayer:
        player = self.scripted(plan.line_up[agent].player)
        if plan.beginning is None:
            return player
        recorded = replace(plan, episode_id=plan.beginning.recording.episode_id)
        return RecordedPlayer(player, plan.beginning, self.seed(recorded, agent))

    def _source(self, plan: EpisodePlan, agent: str, seed: int) -> ReplySource:
        source = self.replies(plan.line_up[agent], plan, seed)
        return source if plan.beginning is None else RecordedReplies(source, plan.beginning)


def engine_replies(
    generate: Generate,
    inference: InferenceOptions,
    rollouts: TextRolloutOptions,
    *,
    temperature: float | None = None,
    seeded: bool = False,
) -> EngineReplies:
    """An engine's replies, sampled as a configuration says.

    Args:
        generate: Sends a request to the engine.
        inference: How training samples.
        rollouts: Whether only legal moves may be said.
        temperature: Another temperature than that of training; unlikely tokens are then not left out.
        seeded: Give every request a seed of its own.
    """
    as_in_training = temperature is None
    return EngineReplies(
        generate,
        temperature=inference.temperature if temperature is None else temperature,
        top_p=inference.top_p if as_in_training else 1.0,
        top_k=inference.top_k if as_in_training else 0,
        legal_moves_only=rollouts.legal_moves_only,
        seeded=seeded,
    )
