"""ConnectFour, and its expert against search without any cuts."""

from __future__ import annotations

import itertools
import random

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.games.duels.connect_four import ConnectFour
from rllib_lmgame.envs.games.duels.connect_four_search import Grid, best_columns
from tests.envs.begun import begun

Board = tuple[str, ...]
"""Columns from the left, each a text of the stones in it from below."""


def has_line(board: Board, grid: Grid, mark: str) -> bool:
    """Line by line, square by square."""
    at = {(x, y) for x, column in enumerate(board) for y, stone in enumerate(column) if stone == mark}
    return any(
        all((x + i * dx, y + i * dy) in at for i in range(grid.connect))
        for x, y in at
        for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1))
    )


def dropped(board: Board, column: int, mark: str) -> Board:
    return (*board[:column], board[column] + mark, *board[column + 1 :])


def worths(board: Board, grid: Grid, mark: str, depth: int) -> dict[int, int]:
    """What every column is worth, by looking at all that can come of it."""
    other = "O" if mark == "X" else "X"
    found = {}
    for column in range(grid.columns):
        if len(board[column]) < grid.rows:
            after = dropped(board, column, mark)
            if has_line(after, grid, mark):
                found[column] = depth
            else:
                found[column] = -max(worths(after, grid, other, depth - 1).values(), default=0) if depth > 1 else 0
    return found


def bits(board: Board, grid: Grid, mark: str) -> int:
    return sum(
        1 << (x * (grid.rows + 1) + y) for x, column in enumerate(board) for y, at in enumerate(column) if at == mark
    )


def random_position(grid: Grid, stones: int, chance: random.Random) -> tuple[Board, str] | None:
    """A board after that many random moves, and whose move it is; nothing if the game was over before."""
    board: Board = ("",) * grid.columns
    for i in range(stones):
        column = chance.choice([c for c in range(grid.columns) if len(board[c]) < grid.rows])
        board = dropped(board, column, "XO"[i % 2])
        if has_line(board, grid, "XO"[i % 2]):
            return None
    return board, "XO"[stones % 2]


@pytest.mark.parametrize(
    ("grid", "stones", "depths"),
    [
        (Grid(), range(30), (1, 2, 3)),
        (Grid(), range(35, 40), (5, 6)),
        (Grid(4, 4, 3), range(6, 14), (2, 9)),
        (Grid(2, 6, 3), range(8), (3, 4)),
        (Grid(7, 2, 3), range(10), (4, 6)),
    ],
    ids=str,
)
def test_the_experts_columns_are_those_of_search_without_cuts(grid, stones, depths) -> None:
    chance = random.Random(1)
    unlike = 0
    drawn = (random_position(grid, chance.choice(stones), chance) for _ in range(2000))
    for i, (board, mark) in enumerate(itertools.islice(filter(None, drawn), 20)):
        depth = depths[i % len(depths)]
        expected = worths(board, grid, mark, depth)
        best = [column for column, worth in expected.items() if worth == max(expected.values())]
        own, other = bits(board, grid, mark), bits(board, grid, "O" if mark == "X" else "X")
        assert best_columns(grid, own, other, depth) == best, (board, mark, depth)
        unlike += len(best) < len(expected)
    assert unlike > 2


def play(replies: str, **config: object):
    session = begun(make_session("lmgame/ConnectFour-v0", config))
    result = None
    for reply in replies:
        result = session.step(dict.fromkeys(session.to_act(), reply))
    return session, result


def test_numbered_marks_name_the_stones_and_the_squares_one_can_drop_on() -> None:
    session, _ = play("1221", rows=2, columns=3, connect=3, numbered_marks=True)
    assert session.observe("X").text == "You are X.\nY11 T12 T21 Y22\n_31"
    session.step({"X": "3"})
    assert session.observe("O").text.endswith("You are O.\nT11 Y12 Y21 T22 T31\n_32"), "one's own are Y in both seats"
    assert play("", rows=2, columns=3, connect=3, numbered_marks=True)[0].observe("X").text.endswith("X.\n_11 _21 _31")
    numbered = ConnectFour(numbered_marks=True).rules
    assert "(_)" in numbered and "(_)" not in ConnectFour().rules and "Above each column" not in numbered


def test_with_a_depth_of_two_it_wins_at_once_and_stops_whom_it_can() -> None:
    for replies, best in (("121212", {"1"}), ("12121", {"1"}), ("112233", {"4"})):
        assert {expert(replies, seed) for seed in range(20)} == best
    assert {expert("", seed) for seed in range(60)} == set("1234567")


def expert(replies: str, seed: int) -> str | None:
    """The expert's column after ``replies``."""
    game = begun(ConnectFour(expert_depth=2), *replies, seed=seed)
    return game.expert_action(game.agent_selection)
