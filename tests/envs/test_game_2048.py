"""2048: moves, new tiles, rewards and the expert's search, each against a plain reference."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.games.grids import game_2048_search as search
from rllib_lmgame.envs.games.grids.game_2048 import Game2048, moved
from tests.envs.begun import begun, played_by_expert


def reference(board: tuple[int, ...], move: str) -> tuple[tuple[int, ...], int]:
    """The board turned until the move goes to the left, rows read as queues, and turned back; and what merged."""
    rows, total, quarters = [], 0, ("Left", "Up", "Right", "Down").index(move)
    for row in np.rot90(np.reshape(board, (4, 4)), quarters).tolist():
        queue, after = [tile for tile in row if tile], []
        while queue:
            after.append(queue.pop(0))
            if queue[:1] == after[-1:]:
                after[-1] += queue.pop(0)
                total += after[-1]
        rows.append(after + [0] * (4 - len(after)))
    return tuple(np.rot90(rows, -quarters).ravel().tolist()), total


def packed(board: tuple[int, ...]) -> np.ndarray:
    return np.array([sum(int(math.log2(tile)) << 4 * cell for cell, tile in enumerate(board) if tile)], dtype="<u8")


@given(st.lists(st.sampled_from([0, 0, 2, 2, 4, 8, 1024]), min_size=16, max_size=16).map(tuple))
def test_tiles_slide_and_merge_as_in_the_reference(board: tuple[int, ...]) -> None:
    for move, found in zip(search.MOVES, search.moved(packed(board)), strict=True):
        assert moved(board, move) == reference(board, move) and found == packed(reference(board, move)[0])


@pytest.mark.parametrize(("reward", "numbered"), [("log", False), ("score", True)])
def test_a_game_of_random_moves_follows_the_rules(reward: str, numbered: bool) -> None:
    chance, score, new = random.Random(0), 0, []
    for seed in range(12):
        game, done, score = begun(Game2048(reward=reward, numbered_cells=numbered), seed=seed), False, 0
        assert ("A is 2" in game.rules) == numbered
        while not done:
            before, move = game._board, chance.choice(search.MOVES)
            possible = [each for each in search.MOVES if reference(before, each)[0] != before]
            assert game.legal_actions() == tuple(possible) != ()
            observation, paid, done, _, info = game.step(move)
            slid, merged = reference(before, move)
            score += merged
            cells = [f"{'_?ABCDEFGHIJ'[tile.bit_length()]}{i}" for i, tile in enumerate(game._board, 1)]
            assert observation.split() == (cells if numbered else [str(tile or "_") for tile in game._board])
            fresh = [tile for tile, old in zip(game._board, slid, strict=True) if tile != old == 0]
            assert sum(game._board) == sum(before) + sum(fresh) and len(fresh) == (move in possible)
            earned = (merged if reward == "score" else 0.1 * math.log2(1 + merged)) if fresh else -0.1
            assert paid == pytest.approx(earned) and not info["invalid_action"]
            new += fresh
        assert info["measures"] == {"largest_tile": max(game._board), "score": score} and not info["success"]
        assert all(reference(game._board, move)[0] == game._board for move in search.MOVES)
    assert set(new) == {2, 4} and 0.07 < new.count(4) / len(new) < 0.13


@pytest.mark.parametrize("tiles", [0, 1, 2])
def test_the_search_is_expectimax(tiles: int) -> None:
    """Of each move: what the board after it is worth, or the mean over cells and tiles of the best move then."""
    rng = random.Random(1)
    for holes in (1, 2, 6):
        board = tuple(rng.sample([0] * holes + rng.choices([2, 4, 8, 16], k=16 - holes), 16))
        for move, found in zip(search.MOVES, search.values(packed(board), tiles)[:, 0], strict=True):
            after, mean = reference(board, move)[0], 0.0
            for cell in [cell for cell in range(16) if not after[cell]] if tiles else ():
                for tile, share in ((2, 0.9), (4, 0.1)):
                    filled = packed((*after[:cell], tile, *after[cell + 1 :]))
                    mean += share * search.values(filled, tiles - 1).max() / after.count(0)
            expected = mean if tiles else search.judged(packed(after))[0]
            assert found == (pytest.approx(expected) if after != board else 0)


def test_the_expert_reaches_the_goal_and_a_level_says_which_tiles_come() -> None:
    one, other = (played_by_expert(begun(Game2048(goal=512), seed=3)) for _ in range(2))
    assert one == other and one[1]["success"] and one[1]["measures"]["largest_tile"] == 512
