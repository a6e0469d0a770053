"""Games of one player of any kind, in every seat and without a cluster: data for supervised learning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import GameConfig, TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes, stable_seed
from rllib_lmgame.rollouts.play import GameInPlay, PlayedPlans, Sessions, first_error, play_many
from rllib_lmgame.rollouts.players import Player, take_seats
from rllib_lmgame.rollouts.seats import EpisodeFailed

PURPOSE = "collect"
MOST_STEPS = 10_000
"""Limit of an episode, for games without a limit of their own."""
AT_ONCE = 64
"""Plans that are played to their ends before the next ones begin."""


def collect_games(
    game: GameConfig,
    player: Player,
    *,
    episodes: int,
    seed: int = 0,
    at_once: int = 1,
    options: TextRolloutOptions | None = None,
) -> Iterator[PlayedPlans]:
    """Play ``episodes`` games, ``at_once`` at a time. An episode that fails is left out and stands among the failures.

    Raises: ConfigError: the player cannot begin, or no episode can work; MissingDependencyError.
    """
    with opened(game.env, game.env_config) as session:
        assignments = dict.fromkeys(session.agent_ids, player.assignment)
    plans = [replace(plan, assignments=assignments) for plan in plans_of(game, episodes, seed)]
    limits, sessions = options or TextRolloutOptions(), _Limited()
    seats = partial(take_seats, player_of=lambda _: player, seed=lambda plan, agent: stable_seed(plan.seed, agent))
    with asyncio.Runner() as runner:
        runner.run(player.__aenter__())
        try:
            for start in range(0, episodes, AT_ONCE):
                some = plans[start : start + AT_ONCE]
                try:
                    yield runner.run(play_many(some, [game], seats, sessions, limits, at_once))
                except BaseExceptionGroup as group:
                    raise first_error(group) from None
        finally:
            sessions.close()
            runner.run(player.__aexit__(None, None, None))


class _Limited(Sessions):
    def watch(self, game: GameInPlay) -> None:
        if len(game.steps) >= MOST_STEPS:
            why = f"an episode is not over after {MOST_STEPS:,} steps; limit it in --env-config (max_turns, ...)"
            raise EpisodeFailed(StopReason.MAX_TURNS, f"{game.game_id}: {why}")


def plans_of(game: GameConfig, episodes: int, seed: int) -> list[EpisodePlan]:
    """Plans of ``episodes`` games; the same for the same seed."""
    plans = plan_episodes(episodes, run_seed=seed, purpose=PURPOSE, iteration=0)
    return ItemOrder(seed, PURPOSE).dealt(plans, [game])
