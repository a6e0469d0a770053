"""Games of scripted players without a cluster, as data for supervised learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.game_calls import opened, run_to_end
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import GameConfig
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes, stable_seed
from rllib_lmgame.rollouts.play import GameInPlay, PlayedEpisode, play_episode
from rllib_lmgame.rollouts.players import Scripted, take_seats
from rllib_lmgame.rollouts.seats import EpisodeFailed

PURPOSE = "collect"
MOST_STEPS = 10_000
"""Limit of an episode, for games without a limit of their own."""


def collect_episodes(
    game: str,
    env_config: Mapping[str, Any] | None = None,
    *,
    player: str = "solver",
    episodes: int,
    seed: int = 0,
    step_timeout_s: float = CALL_LIMIT_S,
) -> Iterator[PlayedEpisode]:
    """Play ``episodes`` games one after the other, with a scripted player in every seat.

    Raises: ConfigError: unknown game, option or player, or the game lacks what the player needs; EpisodeFailed: the
        game raises, hangs or returns an invalid result.
    """
    make_scripted_player(player, "player")
    everybody = Scripted(player)
    seats = partial(take_seats, player_of=lambda _: everybody, seed=_seed)
    with opened(game, env_config) as session:
        assignments = dict.fromkeys(session.agent_ids, everybody.assignment)
        for plan in plans_of(GameConfig(env=game, env_config=dict(env_config or {})), episodes, seed):
            episode = play_episode(
                session, replace(plan, assignments=assignments), seats, step_timeout_s, watch=_at_its_end
            )
            yield run_to_end(episode)


def _at_its_end(game: GameInPlay) -> None:
    if len(game.steps) >= MOST_STEPS:
        why = f"an episode is not over after {MOST_STEPS:,} steps; limit it in --env-config (max_turns, ...)"
        raise EpisodeFailed(StopReason.MAX_TURNS, f"{game.session.game_id}: {why}")


def plans_of(game: GameConfig, episodes: int, seed: int) -> list[EpisodePlan]:
    """Plans of ``episodes`` games; the same for the same seed."""
    plans = plan_episodes(episodes, run_seed=seed, purpose=PURPOSE, iteration=0)
    return ItemOrder(seed, PURPOSE).dealt(plans, [game])


def _seed(plan: EpisodePlan, agent: str) -> int:
    return stable_seed(plan.seed, agent)
