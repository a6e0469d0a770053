"""FrozenLake and Blocksworld."""

from __future__ import annotations

import itertools
import random
from collections import deque

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
    ("turns", "per_turn", "most"),
    [(10, 5, 20), (2, 3, None), (2, 4, None), (10, 5, 6), (6, 1, 20), (3, 5, 7), (14, 1, 14)],
)
def test_every_lake_can_be_crossed_within_its_moves_and_no_more_are_made(
    turns: int, per_turn: int, most: int | None
) -> None:
    config = {"max_turns": turns, "max_actions_per_turn": per_turn, "max_actions": most}
    budget = min(turns * per_turn, most or 99)
    size = 8 if budget == 14 else 4  # Of such lakes an eighth have longer ways.
    game = FrozenLake(show_rules=False, split="all", size=size, frozen_probability=0.6, **config)
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


def test_lakes_are_those_of_gymnasiums_generator() -> None:
    levels = FrozenLake().levels(random.Random(5))
    seeds = random.Random(5)
    for _ in range(50):
        assert next(levels) == tuple(generate_random_map(4, 0.8, seed=seeds.getrandbits(31)))


@pytest.mark.parametrize("rate", [1 / 3, 0.8])
def test_slips_are_gymnasiums(rate: float) -> None:
    rows = ("SFFF", "FHFH", "FFFH", "HFFG")
    theirs = FrozenLakeEnv(desc=list(rows), is_slippery=True, success_rate=rate).P
    for move, name in enumerate(STEPS):
        for cell in range(16):
            expected = np.zeros(16)
            for chance, ahead, _, _ in theirs[cell][("Left", "Down", "Right", "Up").index(name)]:
                expected[ahead] += chance
            assert np.allclose(slips(rows, rate)[move, cell], expected)


def test_ends_are_anywhere_and_the_expert_on_slippery_ice_crosses_as_often_as_value_iteration_says() -> None:
    lakes = {"random_ends": True, "frozen_probability": 0.9, "is_slippery": True, "success_rate": 0.8}
    game = FrozenLake(max_turns=25, max_actions_per_turn=1, max_actions=None, **lakes)
    best, crossed, lakes = 0.0, 0, []
    for seed in range(300):
        game.reset(seed=seed)
        lakes.append(lake := "".join(game._rows))
        info = played_by_expert(game)[1]
        if seed < 30:
            table = FrozenLakeEnv(desc=list(game._rows), is_slippery=True, success_rate=0.8).P
            worth = [float(cell == "G") for cell in lake]
            for _ in range(25):
                means = [[sum(p * worth[to] for p, to, *_ in move) for move in table[i].values()] for i in range(16)]
                worth = [1.0 if cell == "G" else max(mean) for cell, mean in zip(lake, means, strict=True)]
            assert info["measures"]["best_success"] == pytest.approx(worth[lake.index("S")])
        best, crossed = best + info["measures"]["best_success"] / 300, crossed + info["success"]
    assert 0.7 < best < 1 and crossed / 300 == pytest.approx(best, abs=0.05)
    assert all({lake.index(end) for lake in lakes} == set(range(16)) for end in "SG")
    assert 0.07 < sum(lake.count("H") for lake in lakes) / 300 / 14 < 0.1


def test_the_slippery_expert_plays_the_likeliest_moves() -> None:
    """Of all series of moves for one reply; what comes after it is the same question with a reply less."""
    for rows in (("SF", "FG"), ("SH", "FG"), ("SF", "HG")):
        for replies, moves, count in ((1, 2, 2), (2, 3, 2), (3, 5, 2)):
            values = {}
            for series in itertools.product(range(4), repeat=count):
                after = np.eye(4)[0]
                for move in series:
                    after = after @ slips(rows, 1 / 3)[move]
                left = (replies - 1, moves - count, 5, 1 / 3)
                then = [likeliest_moves(rows, divmod(i, 2), *left)[1] if left[0] else float(i == 3) for i in range(4)]
                values[tuple(list(STEPS)[move] for move in series)] = float(after @ then)
            chosen, said = likeliest_moves(rows, (0, 0), replies, moves, 5, 1 / 3)
            assert said == pytest.approx(max(values.values())) == values[tuple(chosen)]


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
