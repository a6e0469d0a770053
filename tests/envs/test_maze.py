"""Maze: texts, rewards, maps, solver."""

from __future__ import annotations

import random
from collections import deque

import pytest

from rllib_lmgame.envs import make_game
from rllib_lmgame.envs.games.grids.maze import DOUBLE_T, STEPS, Level, Maze, carved, free_places, walls_said
from tests.envs.begun import begun, played_by_expert


def game_at(row: int, column: int, **config: object) -> Maze:
    """The double T, starting at a place."""
    return begun(Maze(show_rules=False, **config), level=Level(DOUBLE_T, (8, 6), (row, column)))


def test_the_texts_of_lmrl() -> None:
    game = game_at(5, 6)
    assert (
        game.board()
        == "The goal is at position 8, 6. Your current position is at position 5, 6. There is a wall above you."
    )
    assert game.step("move left")[0].endswith("position 5, 5. There are walls above you, below you.")
    assert walls_said(DOUBLE_T, (7, 6)) == "There are walls to your right, to your left."
    assert walls_said(DOUBLE_T, (1, 1)) == "There are walls to your left, above you, below you."
    assert walls_said(("###", "___", "___", "___", "###"), (2, 1)) == "There are no walls near you."


def test_rewards() -> None:
    game = game_at(6, 6)
    assert game.step("move left")[1] == -1.0
    observation, reward, terminated, _, info = game.step("jump")
    assert (reward, terminated, info["invalid_action"]) == (-4.0, False, True)
    assert "move up, move down" in observation
    assert game.step("move down")[1] == -1.0
    observation, reward, terminated, truncated, info = game.step("Move  Down.")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, True)
    assert observation.startswith("Success")


def test_the_partial_maze_tells_no_coordinates_but_the_way_so_far() -> None:
    game = make_game("lmgame/MazePartial-v0", {"history": 2, "show_rules": False})
    game.reset(seed=3)
    game.start(Level(DOUBLE_T, (8, 6), (5, 3)))
    assert game.board() == "There are walls to your left, below you."
    game.step("move right")
    game.step("move right")
    observation = game.step("move right")[0]
    assert observation == (
        "There is a wall above you.\nYour last moves:\n"
        "There are walls above you, below you. -> move right\n"
        "There are walls above you, below you. -> move right"
    )
    assert not any(char.isdigit() for char in observation)


def steps_needed(level: Level) -> int:
    """Fewest steps, searched forwards: the independent reference."""
    queue, seen = deque([(level.start, 0)]), {level.start}
    while queue:
        place, steps = queue.popleft()
        if place == level.goal:
            return steps
        for down, right in STEPS.values():
            ahead = (place[0] + down, place[1] + right)
            if level.rows[ahead[0]][ahead[1]] != "#" and ahead not in seen:
                seen.add(ahead)
                queue.append((ahead, steps + 1))
    raise AssertionError("the goal cannot be reached")


@pytest.mark.parametrize(("game_id", "levels"), [("lmgame/Maze-v0", 300), ("lmgame/MazeRandom-v0", 1000)])
def test_the_solver_takes_the_shortest_way(game_id: str, levels: int) -> None:
    game = make_game(game_id, {"split": "all"})
    for seed in range(levels):
        game.reset(seed=seed)
        total, info = played_by_expert(game)
        assert info["success"] and total == 1.0 - steps_needed(game._level)


def test_random_mazes_have_one_way_between_any_two_places() -> None:
    rng = random.Random(0)
    for height, width in ((5, 5), (9, 9), (11, 21)) * 10:
        places = set(free_places(carved(rng, height, width)))
        passages = sum((row, column + 1) in places for row, column in places) + sum(
            (row + 1, column) in places for row, column in places
        )
        assert passages == len(places) - 1
        assert len(places) == 2 * (height // 2) * (width // 2) - 1
        assert all((row, column) in places for row in range(1, height, 2) for column in range(1, width, 2))
