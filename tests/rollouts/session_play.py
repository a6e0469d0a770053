"""Games played on the driver: one of a given session, or many as an algorithm plans them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import PlayedEpisode, play_episode
from rllib_lmgame.rollouts.players import LanguageModel, take_seats
from rllib_lmgame.rollouts.records import GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.seats import EngineReplies
from rllib_lmgame.rollouts.sources import AgentMapper


def play(runner: TextGameEnvRunner, session: GameSession, **options: Any) -> PlayedEpisode:
    """Play a session to its end with the runner's model and client in every seat; ``options`` are those of the rollouts
    (a turn limit bootstraps).
    """
    client: Any = runner.client("player")
    rollouts = TextRolloutOptions(**{"bootstrap_turn_limit": True, **options})
    model = LanguageModel("player", None, runner.chat("player"), lambda *_: EngineReplies(client.generate), rollouts)
    seats = partial(take_seats, player_of=lambda _: model)
    assignments = dict.fromkeys(session.agent_ids, AgentAssignment("player", trained=True))
    return asyncio.run(play_episode(session, EpisodePlan("e", 0, 5, "g", 0, assignments=assignments), seats, 10.0))


def play_games(
    runner: TextGameEnvRunner,
    count: int,
    *,
    run_seed: int = 0,
    games: tuple[GameConfig, ...] | None = None,
    players: Mapping[str, str] | None = None,
    **settings: Any,
) -> PlayResult:
    """Plan ``count`` games (by default those of the configuration), give them assignments and play them; ``players`` as
    for :class:`AgentMapper`.
    """
    games = games or runner.config.training_games()
    plans = plan_episodes(
        count, run_seed=run_seed, purpose="t", iteration=1, game_weights=[game.weight for game in games]
    )
    seated, failures = AgentMapper(runner.config, players).assigned(plans, games)
    result = runner.play(seated, PlaySettings(games, **settings))
    result.failures += failures
    return result
