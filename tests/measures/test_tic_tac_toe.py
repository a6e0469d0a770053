"""Exact chances at TicTacToe against games that are counted, and games that are played."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe
from rllib_lmgame.measures.tic_tac_toe import boards, chances, decisions, minimax_player, uniform_player

SQUARE = (2, 7, 6, 9, 5, 1, 4, 3, 8)
"""A magic square: three cells are in a line exactly if their numbers sum to 15."""


def count(own: tuple[int, ...], other: tuple[int, ...]) -> tuple[Fraction, Fraction, Fraction]:
    """How a random game ends for who is to move and owns ``own``, by walking through all games."""
    free = [number for number in SQUARE if number not in own + other]
    if not free:
        return Fraction(0), Fraction(1), Fraction(0)
    win, draw, loss = Fraction(0), Fraction(0), Fraction(0)
    for number in free:
        if any(a + b + number == 15 for i, a in enumerate(own) for b in own[:i]):
            win += 1
        else:
            there = COUNTED.setdefault((frozenset(other), frozenset((*own, number))), None)
            if there is None:
                there = count(other, (*own, number))
                COUNTED[frozenset(other), frozenset((*own, number))] = there
            loss, draw, win = loss + there[0], draw + there[1], win + there[2]
    return win / len(free), draw / len(free), loss / len(free)


COUNTED: dict = {}


def some_player(cells: str):
    """A policy without any sense."""
    weights = {cell: random.Random(cells + cell).random() ** 3 for cell in cells if cell not in "XO"}
    return {cell: weight / sum(weights.values()) for cell, weight in weights.items()}


def test_random_against_random_is_as_counted() -> None:
    counted = count((), ())
    assert chances(uniform_player, uniform_player, "X") == pytest.approx([float(p) for p in counted], abs=1e-12)
    assert [round(float(p), 4) for p in counted] == [0.5849, 0.1270, 0.2881]
    assert chances(uniform_player, uniform_player, "O") == pytest.approx([float(p) for p in counted[::-1]], abs=1e-12)


def test_perfect_play_never_loses_and_draws_against_itself() -> None:
    for mark in "XO":
        assert chances(minimax_player, minimax_player, mark) == (0, pytest.approx(1.0), 0)
        for other in (uniform_player, some_player):
            assert chances(minimax_player, other, mark).loss == 0
            assert chances(other, minimax_player, mark).win == 0


def test_boards_are_all_there_and_are_asked_as_they_are_shown() -> None:
    asked = decisions()
    assert len(asked) == len(set(boards())) == 4520
    by_text = {decision.observation: decision for decision in asked}
    assert len(by_text) == 4520
    chance = random.Random(0)
    for seed in range(30):
        session = make_session("lmgame/TicTacToe-v0")
        session.reset(seed)
        while session.to_act():
            (agent,) = session.to_act()
            seen = session.observe(agent)
            decision = by_text[seen.text]
            assert (decision.agent_id, decision.legal_actions) == (agent, seen.legal_actions)
            assert decision.instructions == session.instructions
            session.step({agent: chance.choice(seen.legal_actions)})


def test_options_that_change_what_is_shown_change_what_is_asked() -> None:
    config = {"show_rules": True, "show_legal_actions": True}
    by_board = dict(zip(boards(), decisions(config), strict=True))
    game = TicTacToe(**config)
    game.reset(seed=0)
    for cell in "519":
        assert by_board[game._cells].observation == game.observe(game.agent_selection)
        game.step(cell)
