"""Games of one player of any kind, in every seat: data for supervised learning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rllib_lmgame.rollouts.collect import plans_of
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.play import PlayedPlans, Sessions, first_error, play_many
from rllib_lmgame.rollouts.players import Player, take_seats
from rllib_lmgame.rollouts.records import GameConfig

AT_ONCE = 64
"""Plans that are played to their ends before the next ones begin."""


def collect_games(
    game: GameConfig, player: Player, *, episodes: int, seed: int, at_once: int, options: TextRolloutOptions
) -> Iterator[PlayedPlans]:
    """Play ``episodes`` games on the levels of :func:`~rllib_lmgame.rollouts.collect.collect_episodes`, some at a time.

    An episode that fails is left out and stands among the failures.

    Raises: ConfigError: the player cannot begin, or no episode can work; MissingDependencyError.
    """
    with opened(game.env, game.env_config) as session:
        assignments = dict.fromkeys(session.agent_ids, player.assignment)
    plans = [replace(plan, assignments=assignments) for plan in plans_of(game, episodes, seed)]
    sessions, seats = Sessions(), partial(take_seats, player_of=lambda _: player)
    with asyncio.Runner() as runner:
        runner.run(player.__aenter__())
        try:
            for start in range(0, episodes, AT_ONCE):
                some = plans[start : start + AT_ONCE]
                try:
                    yield runner.run(play_many(some, [game], seats, sessions, options, at_once))
                except BaseExceptionGroup as group:
                    raise first_error(group) from None
        finally:
            sessions.close()
            runner.run(player.__aexit__(None, None, None))
