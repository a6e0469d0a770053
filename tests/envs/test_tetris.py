"""Tetris: falling, locking, clearing, levels, solver."""

from __future__ import annotations

import pytest

from rllib_lmgame.envs.games.grids.tetris.board import SHAPES, TURNED
from rllib_lmgame.envs.games.grids.tetris.game import Tetris
from rllib_lmgame.envs.games.grids.tetris.search import first_line
from tests.envs.begun import begun

FULL = {"rows": 20, "columns": 10, "pieces": "tetrominoes", "allow_rotation": True}


def game_of(*spawns: tuple[int, int], **config: object) -> Tetris:
    """A game in which these pieces appear first."""
    return begun(Tetris(show_rules=False, **config), level=spawns)


def test_a_piece_is_locked_as_soon_as_it_rests_also_after_a_move_to_the_side() -> None:
    game = game_of((0, 1), (0, 0), (0, 3))
    game.step("Down || Down || Down")
    assert game.step("Down || Down || Right")[0] == "___X\n____\n_#__\n_#__"


def test_moves_without_room_cost_a_step_and_change_nothing() -> None:
    game = game_of((0, 0))
    assert game.legal_actions() == ("Right", "Down")
    observation, reward, _, _, info = game.step("Left")
    assert (observation, reward, info["invalid_action"]) == ("X___\n____\n____\n____", pytest.approx(-0.1), False)
    assert game.step("Rotate")[4]["invalid_action"]


def test_rows_above_a_cleared_one_move_down_and_two_rows_pay_twice() -> None:
    game = game_of((1, 0), (1, 1), (1, 2), (0, 0), rows=3, columns=3, pieces="dominoes", goal_lines=3)
    assert game.board() == "X__\nX__\n___"
    assert game.step("Down || Down || Down")[1] == pytest.approx(19.7)
    assert game.board() == "XX_\n___\n___"
    game = game_of((1, 0), (0, 1), rows=3, columns=3, pieces="dominoes", goal_lines=2)
    observation, reward, *_ = game.step("Down || Down || Down")
    assert reward == pytest.approx(9.7)
    assert observation.splitlines()[2] == "#__"


def test_the_seven_tetrominoes() -> None:
    shapes = SHAPES["tetrominoes"]
    assert [sum(row.bit_count() for row in shape) for shape in shapes] == [4] * 7
    turns = []
    for shape in shapes:
        different = {shape}
        while (shape := TURNED[shape]) not in different:
            different.add(shape)
        turns.append(different)
    assert [len(different) for different in turns] == [2, 1, 4, 2, 2, 4, 4]
    assert len(set.union(*turns)) == 19


def test_turning_is_clockwise_and_needs_room() -> None:
    game = game_of((5, 0), **FULL)
    assert [row[:3] for row in game.board().splitlines()[:3]] == ["XXX", "__X", "___"]
    game.step("Rotate")
    assert [row[:3] for row in game.board().splitlines()[:3]] == ["_X_", "_X_", "XX_"]
    game = game_of((0, 6), max_actions_per_turn=20, **FULL)
    game.step("Rotate || Right || Right || Right")
    assert game.board().splitlines()[0] == "_________X"
    assert "Rotate" not in game.legal_actions()


def fewest(game: Tetris, pieces: int) -> tuple[int, int] | None:
    """Fewest pieces and moves to a cleared row, by trying every series of moves in the game itself: the independent
    reference.
    """
    queue = [(game._locked, game._piece, 0, 0)]
    seen = {queue[0][:3]}
    best: tuple[int, int] | None = None
    for now, piece, used, moves in queue:
        for move in game._rules.moves:
            game._locked, game._piece, game._used, game._lines, game._blocked = now, piece, used + 1, 0, False
            game.play_move(move)
            fresh = game._used - 1
            if game._lines:
                best = min(best or (99, 99), (fresh, moves + 1))
            state = (game._locked, game._piece, fresh)
            if not game._lines and not game._blocked and fresh < pieces and state not in seen:
                seen.add(state)
                queue.append((*state, moves + 1))
    return best


SMALL = [
    {},
    {"gravity": True},
    {"rows": 3, "columns": 3, "pieces": "dominoes"},
    {"pieces": "dominoes", "allow_rotation": True},
]


@pytest.mark.parametrize("config", SMALL)
def test_the_solver_needs_the_fewest_pieces_and_then_moves(config: dict) -> None:
    game = Tetris(**config)
    for seed in range(15):
        game.reset(seed=seed)
        pieces = len(game._spawns)
        path = game.solve()
        assert path is not None
        found = first_line(
            game._locked, game._rules, [game._piece, *[game._spawned(game._spawn(i)) for i in range(1, pieces)]]
        )
        assert found == (path, pieces)
        assert fewest(game, pieces) == (pieces, len(path))
