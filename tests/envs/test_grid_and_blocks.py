"""FrozenLake and Blocksworld."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.grids.blocksworld import (
    Blocksworld,
    after_move,
    all_stacks,
    possible_moves,
    random_stacks,
    shortest_moves,
)
from rllib_lmgame.envs.games.grids.frozen_lake import STEPS, FrozenLake, likeliest_moves, slips
from tests.envs.begun import begun, played_by_expert

LAKE = ("SFFF", "FHFH", "FFFH", "HFFG")


def lake(rows: tuple[str, ...] = LAKE, **config: object) -> FrozenLake:
    """A lake drawn by hand."""
    return begun(FrozenLake(show_rules=False, **config), level=rows)


def blocks(start: tuple[int, ...], goal: tuple[int, ...], **config: object) -> Blocksworld:
    """Blocks set by hand."""
    return begun(Blocksworld(show_rules=False, num_blocks=len(start), **config), level=(start, goal))


@pytest.mark.parametrize(
    ("turns", "per_turn", "most"), [(10, 5, 20), (2, 3, None), (2, 4, None), (10, 5, 6), (6, 1, 20), (3, 5, 7)]
)
def test_every_lake_can_be_crossed_within_its_moves_and_no_more_are_made(
    turns: int, per_turn: int, most: int | None
) -> None:
    config = {"max_turns": turns, "max_actions_per_turn": per_turn, "max_actions": most}
    budget = min(turns * per_turn, most or 99)
    game = FrozenLake(show_rules=False, split="all", frozen_probability=0.55, **config)
    for seed in range(60):
        game.reset(seed=seed)
        assert played_by_expert(game)[0] == 1.0
    game, moves = lake(**config), 0
    for number in range(1, turns + 1):
        _, _, terminated, truncated, info = game.step(" || ".join(["Left"] * (per_turn + 1)))
        moves = min(moves + per_turn, budget)
        assert (info["actions_taken"], terminated) == (moves, False)
        assert truncated is (number == turns or moves == budget)
        if truncated:
            break
    assert moves == budget
    with pytest.raises(ConfigError, match="can be crossed in 5 moves"):
        FrozenLake(max_turns=5, max_actions_per_turn=1).reset(seed=0)


def test_slipping_goes_to_either_side_and_never_back() -> None:
    rows = ("SFFFF", "FFFFF", "FFFFF", "FFFFF", "FFFFG")
    ends: Counter[tuple[int, int]] = Counter()
    for seed in range(900):
        game = begun(FrozenLake(size=5, is_slippery=True), level=rows, seed=seed)
        game._place = (2, 2)
        game.step("Up")
        ends[game._place] += 1
    assert set(ends) == {(1, 2), (2, 1), (2, 3)}
    assert all(240 < count < 360 for count in ends.values())


def test_lakes_are_those_of_gymnasiums_generator() -> None:
    levels = FrozenLake().levels(random.Random(5))
    seeds = random.Random(5)
    for _ in range(50):
        assert next(levels) == tuple(generate_random_map(4, 0.8, seed=seeds.getrandbits(31)))


def test_slips_are_gymnasiums() -> None:
    rows = ("SFFF", "FHFH", "FFFH", "HFFG")
    theirs = FrozenLakeEnv(desc=list(rows), is_slippery=True).P
    for move, name in enumerate(STEPS):
        for cell in range(16):
            expected = np.zeros(16)
            for chance, ahead, _, _ in theirs[cell][("Left", "Down", "Right", "Up").index(name)]:
                expected[ahead] += chance
            assert np.allclose(slips(rows)[move, cell], expected)


def crossing(rows: tuple[str, ...], chances: np.ndarray, planned: tuple[int, ...]) -> tuple[float, list[str]]:
    """Best chance to end at the goal and the first reply, by trying every series of moves: the independent
    reference.
    """
    best: tuple[float, list[str]] = (-1.0, [])
    for series in itertools.product(range(4), repeat=planned[0]):
        after = chances
        for move in series:
            after = after @ slips(rows)[move]
        value = (
            float(after[-1])
            if len(planned) == 1
            else sum(p * crossing(rows, np.eye(4)[i], planned[1:])[0] for i, p in enumerate(after) if p)
        )
        best = max(best, (value, [list(STEPS)[move] for move in series]), key=lambda pair: pair[0])
    return best


def test_the_slippery_expert_plays_the_likeliest_moves() -> None:
    for rows in (("SF", "FG"), ("SH", "FG"), ("SF", "HG")):
        for replies, moves, planned in ((1, 2, (2,)), (2, 3, (2, 1)), (3, 5, (2, 2, 1))):
            value, series = crossing(rows, np.eye(4)[0], planned)
            chosen = likeliest_moves(rows, (0, 0), replies, moves, 5)
            after = np.eye(4)[0]
            for move in chosen:
                after = after @ slips(rows)[list(STEPS).index(move)]
            then = [crossing(rows, np.eye(4)[i], planned[1:])[0] if planned[1:] else float(i == 3) for i in range(4)]
            assert len(chosen) == len(series) and float(after @ then) == pytest.approx(value)


@pytest.mark.parametrize(
    "reply", ["(move 2 to 2)", "(move 4 to 0)", "(move 0 to 1)", "(move 1 to 3)", "(move 3 to 0)", "(move 99 to 98)"]
)
def test_blocksworld_impossible_moves_change_nothing(reply: str) -> None:
    game = blocks((0, 1, 0), (2, 0, 0))
    before = game.board()
    _, reward, _, _, info = game.step(reply)
    assert (reward, info["invalid_action"], game.board()) == (-1.0, True, before)


def breadth_first(start: tuple[int, ...], goal: tuple[int, ...]) -> int:
    """Fewest moves, without a heuristic: the independent reference."""
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        stacks, depth = queue.popleft()
        if stacks == goal:
            return depth
        for move in possible_moves(stacks):
            ahead = after_move(stacks, move)
            if ahead not in seen:
                seen.add(ahead)
                queue.append((ahead, depth + 1))
    raise AssertionError("every arrangement can be reached")


def test_the_blocks_solver_is_optimal() -> None:
    for start in all_stacks(3):
        for goal in all_stacks(3):
            assert len(shortest_moves(start, goal)) == breadth_first(start, goal)
    rng = random.Random(0)
    for _ in range(40):
        start, goal = random_stacks(rng, 5), random_stacks(rng, 5)
        assert len(shortest_moves(start, goal)) == breadth_first(start, goal)
