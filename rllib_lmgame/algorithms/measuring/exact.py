"""``evaluation_config.measures: [exploitability]``: figures worked out without play."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import numpy as np

from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.contract.sequence_form import GameTree
from rllib_lmgame.measures.exploitability import game_values, nash_conv
from rllib_lmgame.measures.game_tree import game_tree
from rllib_lmgame.rollouts.batch_inference import Answer
from rllib_lmgame.rollouts.records import GameConfig

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

MOST_STATES = 400_000
"""States of the largest game that is walked through unless the measure says otherwise. Liar's Dice with 6 sides has
294,883 (``game_tree("lmgame/LiarsDice-v0")``: 12 to 18 s on the two-core CPU of docs/results).
"""


class Exploitability:
    """The exploitability of the policies in all seats, at every information set of a game that can be walked through.

    Gives ``exploitability`` (NashConv / seats), ``nash_conv`` and ``first_seat_value`` (expected reward of the first
    seat). ``illegal_mean`` and ``illegal_max`` are probabilities of illegal replies over the information sets; legal
    replies are measured. All are exact, but for policies that reason: ``samples`` replies are drawn per set, and the
    estimate is above the true value on average, since a best response also exploits chance.

    Args:
        samples: Replies per information set, of policies that reason.
        max_states: A game with more states is refused.
    """

    columns = ("exploitability", "nash_conv", "first_seat_value", "illegal_mean", "illegal_max")

    def __init__(
        self, samples: Annotated[int, limits(ge=2)] = 64, max_states: Annotated[int, limits(ge=1)] = MOST_STATES
    ) -> None:
        self.samples, self.max_states = samples, max_states

    def problem(self, game: GameConfig) -> str | None:
        found = tree_of(game, self.max_states)
        return found if isinstance(found, str) else None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        tree = tree_of(game, self.max_states)
        assert not isinstance(tree, str), tree
        return numbers_of(tree, policies.ask(tree.information_sets, self.samples))


def tree_of(game: GameConfig, max_states: int = MOST_STATES) -> GameTree | str:
    """The game tree, or why there is none; found out once per process."""
    try:
        return _walked(game.env, json.dumps(game.env_config, sort_keys=True), max_states)
    except TypeError as error:
        return f"{game.env} cannot be walked through: its env_config is not plain ({error})"


@lru_cache(maxsize=8)
def _walked(env: str, env_config: str, max_states: int) -> GameTree | str:
    try:
        return game_tree(env, json.loads(env_config), max_states)
    except ValueError as error:
        return str(error)


def numbers_of(tree: GameTree, answers: Sequence[Answer]) -> dict[str, float]:
    """The measures of a policy that answers so at the information sets of ``tree``."""
    odds = [answer.odds for answer in answers]
    illegal = [answer.illegal for answer in answers]
    gains = nash_conv(tree, odds)
    return {
        "exploitability": gains / len(tree.agents),
        "nash_conv": gains,
        "first_seat_value": game_values(tree, odds)[0],
        "illegal_mean": float(np.mean(illegal)),
        "illegal_max": float(np.max(illegal)),
    }
