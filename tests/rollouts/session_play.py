"""One game played on the driver, a model in every seat."""

from __future__ import annotations

import asyncio
from typing import Any

from rllib_lmgame.envs.session import GameSession
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode, play_episode
from rllib_lmgame.rollouts.seats import EngineReplies, LanguageModelSeat, Seat


def play(runner: TextGameEnvRunner, session: GameSession, **options: Any) -> PlayedEpisode:
    """Play a session to its end with the runner's model and client; ``options`` are the seats'."""
    client: Any = runner._clients["player"]

    def seats(game: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        return {
            agent: LanguageModelSeat(
                agent,
                game.roles[agent],
                "player",
                chat=runner.chat("player"),
                source=EngineReplies(client.generate),
                instructions=game.instructions,
                episode_id=plan.episode_id,
                **options,
            )
            for agent in game.agent_ids
        }

    return asyncio.run(play_episode(session, EpisodePlan("e", 0, 5, "g", 0), seats, 10.0))
