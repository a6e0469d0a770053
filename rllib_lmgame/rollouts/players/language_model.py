"""Language models as players, and how their replies are sampled."""

from __future__ import annotations

from collections.abc import Callable

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment
from rllib_lmgame.rollouts.players.player import Player
from rllib_lmgame.rollouts.restarts import RecordedReplies
from rllib_lmgame.rollouts.seats import EngineReplies, Generate, LanguageModelSeat, ReplySource, Seat
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LANGUAGE_MODEL
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

Replies = Callable[[EpisodePlan, int], ReplySource]
"""Where a language model's replies come from in one episode; the number is the seed of its seat."""


class LanguageModel(Player):
    """A language model.

    Args:
        name, source: See :class:`Player`.
        chat: How it is talked to.
        replies: Where its replies come from.
        options: Penalties, and which limits bootstrap.
    """

    def __init__(
        self, name: str, source: str | None, chat: ChatFormat, replies: Replies, options: TextRolloutOptions
    ) -> None:
        super().__init__(name, source)
        self._chat = chat
        self._replies = replies
        self._options = options

    @property
    def assignment(self) -> SeatAssignment:
        """See :class:`Player`."""
        return SeatAssignment(self.name, LANGUAGE_MODEL, member=self.source)

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """See :class:`Player`."""
        source = self._replies(plan, seed)
        return LanguageModelSeat(
            agent,
            session.roles[agent],
            self.name,
            chat=self._chat,
            source=source if plan.beginning is None else RecordedReplies(source, plan.beginning),
            instructions=session.instructions,
            episode_id=plan.episode_id,
            seed=seed,
            format_penalty=self._options.format_penalty,
            bootstrap_turn_limit=self._options.bootstrap_turn_limit,
            bootstrap_token_budget=self._options.bootstrap_token_budget,
        )


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
