"""TicTacToe's chances as a measure of an evaluation."""

from __future__ import annotations

import pytest

from rllib_lmgame.algorithms.measuring.exact import TicTacToeChances
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.measures.tic_tac_toe import chances, minimax_player, uniform_player
from rllib_lmgame.rollouts.batch_inference import Answer
from rllib_lmgame.rollouts.records import GameConfig

GAME = GameConfig(env="lmgame/TicTacToe-v0")


class Asked:
    """Policies that play uniformly as X and, as O, the first empty cell."""

    def ask(self, decisions, samples: int) -> list[Answer]:
        assert samples == 5
        return [self._answer(decision) for decision in decisions]

    def _answer(self, decision) -> Answer:
        actions = decision.legal_actions
        odds = {actions[0]: 1.0} if decision.agent_id == "O" else dict.fromkeys(actions, 1 / len(actions))
        return Answer(odds, 0.25 if len(actions) == 9 else 0.0)


def first_cell(cells: str) -> dict[str, float]:
    return {next(cell for cell in cells if cell not in "XO"): 1.0}


def test_numbers_are_those_of_the_players() -> None:
    measure = TicTacToeChances(samples=5)
    numbers = measure(GAME, Asked())
    assert set(numbers) == set(measure.columns)
    as_x, as_o = chances(uniform_player, minimax_player, "X"), chances(first_cell, minimax_player, "O")
    assert (numbers["minimax_loss_first"], numbers["minimax_loss_second"]) == pytest.approx((as_x.loss, as_o.loss))
    assert numbers["minimax_loss"] == pytest.approx((as_x.loss + as_o.loss) / 2)
    assert numbers["random_win_first"] == pytest.approx(737 / 1260)
    assert numbers["random_loss_first"] == pytest.approx(121 / 420)
    assert numbers["illegal_max"] == 0.25 and numbers["illegal_mean"] == pytest.approx(0.25 / 4520)


def test_a_game_that_may_be_cut_short_has_no_such_chances() -> None:
    """Five replies, all legal, are enough for any game."""
    cut = [TicTacToeChances().problem(GameConfig(env=GAME.env, env_config={"max_turns": turns})) for turns in (2, 4, 5)]
    assert ["max_turns" in str(problem) for problem in cut] == [True, True, False] and cut[2] is None
    session = make_session(GAME.env, {"max_turns": 5})
    session.reset(0)
    for cell in "123546879":  # A draw on a full board.
        assert not session.step({session.to_act()[0]: cell}).truncated
    assert session.to_act() == ()
