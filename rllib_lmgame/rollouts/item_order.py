"""Levels that are items of a list: each is played once before any is played again.

Such a game (``TextGame.lists_levels``) takes an order from the upper bits of a seed, and a place in it from the lower
ones (:mod:`~rllib_lmgame.envs.support.item_order`). So plans with consecutive lower bits are one item after another,
in any process. The driver counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rllib_lmgame.envs.registry import game_spec, load_factory
from rllib_lmgame.envs.support.item_order import seed_of_place
from rllib_lmgame.rollouts.options import GameConfig
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_evaluation, stable_seed, with_samples


class ItemOrder:
    """Counts the items of each list that have been dealt, by the number of the game.

    ``run_seed`` and ``purpose`` (see :func:`~rllib_lmgame.rollouts.plans.plan_episodes`) decide the orders.
    """

    def __init__(self, run_seed: int, purpose: str) -> None:
        self._order = stable_seed(stable_seed(run_seed, purpose, "items"), 0)
        self._dealt: Counter[int] = Counter()

    def dealt(self, plans: Sequence[EpisodePlan], games: Sequence[GameConfig]) -> list[EpisodePlan]:
        """``plans``, in which each group of a game with a list gets the next item."""
        lists = {number for number in {plan.game for plan in plans} if is_list(games[number])}
        seeds: dict[str, int] = {}
        for plan in plans:
            if plan.game in lists and plan.group not in seeds:
                seeds[plan.group] = seed_of_place(self._order, self._dealt[plan.game])
                self._dealt[plan.game] += 1
        return [replace(plan, seed=seeds[plan.group]) if plan.group in seeds else plan for plan in plans]

    def state(self) -> dict[str, int]:
        return {str(game): count for game, count in self._dealt.items()}

    def set_state(self, state: Mapping[str, int]) -> None:
        self._dealt = Counter({int(game): int(count) for game, count in state.items()})


def evaluated_levels(
    games: Sequence[GameConfig], num_episodes: int, purpose: str = "evaluation", samples: int = 1
) -> list[EpisodePlan]:
    """Plans of an evaluation: ``samples`` episodes on each of ``num_episodes`` levels (or the game's own number).

    They are the same during training and after it; see :func:`~rllib_lmgame.rollouts.plans.plan_evaluation`.
    """
    plans = plan_evaluation(len(games), num_episodes, purpose, [game.episodes for game in games])
    return ItemOrder(0, purpose).dealt(with_samples(plans, samples), games)


def passes(dealt: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Passes over all lists, as a fraction; the list with the fewest passes counts.

    Args:
        dealt: A state of :class:`ItemOrder`.
        sizes: Number of levels of each list, by the same keys; 0 if unknown.

    Returns:
        NaN if levels of a list of unknown size were dealt.
    """
    if any(dealt.get(game) for game, size in sizes.items() if not size):
        return math.nan
    return min(dealt.get(game, 0) / size if size else 0.0 for game, size in sizes.items())


def is_list(game: GameConfig) -> bool:
    spec = game_spec(game.env)
    lists = getattr(load_factory(spec), "lists_levels", False)
    if isinstance(lists, str):
        return {**spec.defaults, **game.env_config}.get(lists) is not None
    return bool(lists)
