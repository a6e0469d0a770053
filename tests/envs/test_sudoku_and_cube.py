"""Sudoku and RubiksCube."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.contract.splits import level_digest
from rllib_lmgame.envs.games.grids.rubiks_cube import SOLVED, TURNS, RubiksCube, is_solved, near_cubes, shortest_turns
from rllib_lmgame.envs.games.grids.rubiks_cube import turned as after_turn
from rllib_lmgame.envs.games.grids.sudoku import Sudoku, solutions
from tests.envs.begun import begun

SEVERAL = "0104040140101342"  # It has two solutions: the first row begins with 2 or 3.


def fillings(grid: str) -> Iterator[str]:
    """All solutions, cell by cell in reading order: the independent reference."""
    if "0" not in grid:
        yield grid
        return
    size = round(len(grid) ** 0.5)
    box, (row, column) = round(size**0.5), divmod(grid.index("0"), size)
    for number in "123456789"[:size]:
        cells = [divmod(cell, size) for cell, other in enumerate(grid) if other == number]
        if all(i != row and j != column and (i // box, j // box) != (row // box, column // box) for i, j in cells):
            yield from fillings(grid.replace("0", number, 1))


@pytest.mark.parametrize("task", ["mini_sudoku", "sudoku"])
def test_grids_of_reasoning_gym_have_their_solution_alone(task: str) -> None:
    for item in pytest.importorskip("reasoning_gym").create_dataset(task, seed=0, size=10):
        rows = (item["metadata"][key] for key in ("puzzle", "solution"))
        grid, solution = ("".join(str(number) for row in each for number in row) for each in rows)
        assert [*solutions(grid)] == [solution]


@pytest.mark.parametrize("size", [{}, {"empty": 12}, {"size": 9, "empty": 20}])
@pytest.mark.parametrize("unique", [True, False])
def test_levels_have_one_solution_unless_several_may_be(size: dict, unique: bool) -> None:
    several = False
    for grid in itertools.islice(Sudoku(unique=unique, **size).levels(random.Random(0)), 50):
        found = sorted(fillings(grid))
        assert grid.count("0") == size.get("empty", 6) and sorted(solutions(grid)) == found
        several = several or len(found) > 1
    assert several is not unique


@given(picks=st.lists(st.integers(0, 60), min_size=60, max_size=60))
def test_a_number_is_right_while_a_solution_has_it(picks: list[int]) -> None:
    game, grid = begun(Sudoku(unique=False, max_turns=60, show_rules=False), level=SEVERAL), SEVERAL
    while "0" in grid and picks:
        legal = game.legal_actions()
        number, row, column = legal[picks.pop() % len(legal)].split(",")
        cell = 4 * int(row) + int(column) - 5
        right = any(solution[cell] == number for solution in fillings(grid))
        grid = grid[:cell] + number + grid[cell + 1 :] if right else grid
        full, told = "0" not in grid, "" if right else f"{number} at row {row}, column {column} is wrong.\n"
        seen, *after, _, info = game.step(f"{number},{row},{column}")
        assert seen == told + "\n".join(grid[i : i + 4] for i in range(0, 16, 4))
        assert after == [1 + 10 * full if right else -0.1, full] and info.get("success", False) is full


def test_which_placements_are_understood() -> None:
    for reply in ("2,1,1", "2, 1, 1", "2 1 1", "place 2 at row 1 col 1", "Place 2 at row 1, column 1."):
        assert begun(Sudoku(show_rules=False), level=SEVERAL).step(reply)[:2] == ("2104\n0401\n4010\n1342", 1.0)
    for reply in ("", "2", "5,1,1", "0,1,1", "2,1,5", "2,0,1", "211", "2,1,1,1", "1,1,2", "٢,1,1"):
        seen, reward, _, _, info = begun(Sudoku(show_rules=False), level=SEVERAL).step(reply)
        assert seen.startswith("Invalid action: ") and seen.endswith("\n0104\n0401\n4010\n1342")
        assert (reward, info["invalid_action"]) == (-0.1, True)


PLACES = ((3, 8, 5), (2, 4, 17), (0, 16, 13), (1, 12, 9), (21, 7, 10), (20, 19, 6), (22, 15, 18), (23, 11, 14))
CORNER_TURNS = {
    "U": ((3, 0, 1, 2, 4, 5, 6, 7), (0, 0, 0, 0, 0, 0, 0, 0)),
    "D": ((0, 1, 2, 3, 5, 6, 7, 4), (0, 0, 0, 0, 0, 0, 0, 0)),
    "L": ((0, 2, 6, 3, 4, 1, 5, 7), (0, 1, 2, 0, 0, 2, 1, 0)),
    "R": ((4, 1, 2, 0, 7, 5, 6, 3), (2, 0, 0, 1, 1, 0, 0, 2)),
    "F": ((1, 5, 2, 3, 0, 4, 6, 7), (1, 2, 0, 0, 2, 1, 0, 0)),
    "B": ((0, 1, 3, 7, 4, 5, 2, 6), (0, 0, 1, 2, 0, 0, 2, 1)),
}
"""Which corner comes to each of URF, UFL, ULB, UBR, DFR, DLF, DBL and DRB, how twisted: as Kociemba numbers them."""


def of_corners(turns: list[str]) -> tuple[str, list[int]]:
    """A solved cube after turns, by its corners: the independent reference; and where the corners are."""
    corners = [(i, 0) for i in range(8)]
    for turn in turns:
        for _ in range(3 if turn.endswith("'") else 1):
            corners = [(corners[i][0], corners[i][1] + twist) for i, twist in zip(*CORNER_TURNS[turn[0]], strict=True)]
    colours = dict(enumerate(SOLVED))
    for place, (corner, twist) in zip(PLACES, corners, strict=True):
        colours |= {place[(i + twist) % 3]: SOLVED[PLACES[corner][i]] for i in range(3)}
    return "".join(colours[i] for i in range(24)), [corner for corner, _ in corners]


@given(turns=st.lists(st.sampled_from([*TURNS]), max_size=12))
def test_turns_are_those_of_a_cube_of_corners_and_solutions_the_shortest(turns: list[str]) -> None:
    """Every turn leads one turn nearer or further, and only cubes of one colour a face are at 0."""
    cube, corners = of_corners(turns)
    path = shortest_turns(cube)
    assert reduce(after_turn, turns, SOLVED) == cube
    assert is_solved(reduce(after_turn, path, cube)) and len(path) <= len(turns) and (not path) == is_solved(cube)
    assert sum(a > b for a, b in itertools.combinations(corners, 2)) % 2 == len(turns) % 2 == len(path) % 2
    assert all(reduce(after_turn, [turn] * 4, cube) == cube for turn in TURNS)
    distances = {len(shortest_turns(after_turn(cube, turn))) for turn in TURNS}
    assert distances <= {len(path) - 1, len(path) + 1} and (len(path) - 1 in distances or not path)


def test_levels_are_the_cubes_of_their_distance() -> None:
    assert [*Counter(near_cubes().values()).values()] == [1, 6, 27, 120, 534, 2256, 8969]  # As published.
    for scramble, count, all_distances in ((1, 12, {1}), (2, 108, {2}), (3, 864, {1, 3})):
        cubes = {reduce(after_turn, turns, SOLVED) for turns in itertools.product(TURNS, repeat=scramble)}
        levels = {cube for cube in cubes if len(shortest_turns(cube)) == scramble}
        game = RubiksCube(scramble=scramble)
        assert len(levels) == count and levels >= {*itertools.islice(game.levels(random.Random(0)), 200)}
        splits = Counter(game.split_of_level(level_digest(game.level_key(cube)), cube) for cube in levels)
        assert splits["test"] == splits["validation"] == round(count / 10) or (scramble == 3 and splits["test"] > 50)
        free = itertools.islice(RubiksCube(scramble=scramble, may_undo=True).levels(random.Random(0)), 200)
        assert {len(shortest_turns(cube)) for cube in free} == all_distances
    assert len({*itertools.islice(RubiksCube(scramble=1, any_orientation=True).levels(random.Random(0)), 2000)}) == 144


@pytest.mark.parametrize("reply", ["U'", "u’", "D'.", "d'"])
def test_a_cube_that_is_held_in_another_way_is_solved(reply: str) -> None:
    game = begun(RubiksCube(show_rules=False), "U2", "F B", level=after_turn(SOLVED, "U"))
    assert game.board() == "WW\nWW\nRRBBOOGG\nGGRRBBOO\nYY\nYY"
    assert game.step(reply)[1:4] == (1.0, True, False)
