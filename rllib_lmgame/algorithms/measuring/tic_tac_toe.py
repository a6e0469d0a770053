"""``evaluation_config.measures: [tic_tac_toe]``: how often the policy loses to perfect and to random play, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np

from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.measures.tic_tac_toe import chances, decisions, minimax_player, player_of, uniform_player
from rllib_lmgame.rollouts.records import GameConfig

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

MOST_MOVES = 5
"""Moves of a player, at most."""


class TicTacToeChances:
    """Chances of the policies at TicTacToe, from what they would reply on every board.

    Gives ``minimax_loss``, the chance to lose to minimax that draws evenly among best moves, and ``random_loss`` and
    ``random_win`` against uniform play: means of both seats; ``minimax_loss_first`` and so on are of one seat.
    ``illegal_mean`` and ``illegal_max`` are probabilities of illegal replies over the boards; legal ones are measured.
    Policies see no earlier moves: the figures are those of ``history: window`` and ``history_window: 1``.

    Args:
        samples: Replies per board, of policies that reason.
    """

    columns = (
        *(
            f"{name}{seat}"
            for name in ("minimax_loss", "random_loss", "random_win")
            for seat in ("", "_first", "_second")
        ),
        *("illegal_mean", "illegal_max"),
    )

    def __init__(self, samples: Annotated[int, limits(ge=1)] = 16) -> None:
        self.samples = samples

    def problem(self, game: GameConfig) -> str | None:
        """Why ``game`` has no such chances, or ``None``."""
        env = make_game(game.env, game.env_config)
        env.close()
        if not isinstance(env, TicTacToe):
            return f"{game.env} is not TicTacToe"
        if env.options.max_turns is not None and env.options.max_turns < MOST_MOVES:
            return f"{game.env} has no exact chances while max_turns below {MOST_MOVES} may cut it short"
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> Mapping[str, float]:
        asked = decisions(game.env_config)
        answers = policies.ask(asked, self.samples)
        player = player_of([answer.odds for answer in answers])
        numbers: dict[str, float] = {}
        for seat, mark in (("first", "X"), ("second", "O")):
            perfect, random = chances(player, minimax_player, mark), chances(player, uniform_player, mark)
            numbers |= {f"minimax_loss_{seat}": perfect.loss}
            numbers |= {f"random_loss_{seat}": random.loss, f"random_win_{seat}": random.win}
        for name in ("minimax_loss", "random_loss", "random_win"):
            numbers[name] = (numbers[f"{name}_first"] + numbers[f"{name}_second"]) / 2
        illegal = [answer.illegal for answer in answers]
        return numbers | {"illegal_mean": float(np.mean(illegal)), "illegal_max": float(np.max(illegal))}
