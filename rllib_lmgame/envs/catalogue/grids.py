"""Puzzles on grids and with blocks."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/Sokoban-v0",
        "rllib_lmgame.envs.sokoban:Sokoban",
        "Push a box onto its target, 6x6.",
        horizon=6,
        reward_range=(-1.4, 10.7),
        solver=True,
    ),
    GameSpec(
        "lmgame/SokobanLarge-v0",
        "rllib_lmgame.envs.sokoban:Sokoban",
        "Sokoban 8x8, one box.",
        horizon=6,
        reward_range=(-1.4, 10.7),
        solver=True,
        defaults={"dim_room": (8, 8)},
    ),
    GameSpec(
        "lmgame/SokobanTwoBoxes-v0",
        "rllib_lmgame.envs.sokoban:Sokoban",
        "Sokoban 8x8, two boxes.",
        horizon=6,
        reward_range=(-2.4, 11.7),
        solver=True,
        defaults={"dim_room": (8, 8), "num_boxes": 2},
    ),
    GameSpec(
        "lmgame/FrozenLake-v0",
        "rllib_lmgame.envs.frozen_lake:FrozenLake",
        "Cross a 4x4 lake around the holes.",
        horizon=10,
        reward_range=(-0.7, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/FrozenLakeSlippery-v0",
        "rllib_lmgame.envs.frozen_lake:FrozenLake",
        "FrozenLake on slippery ice.",
        horizon=10,
        reward_range=(-0.7, 1.0),
        solver=True,
        defaults={"is_slippery": True},
    ),
    GameSpec(
        "lmgame/Blocksworld-v0",
        "rllib_lmgame.envs.blocksworld:Blocksworld",
        "Restack three blocks into a goal.",
        horizon=11,
        reward_range=(-55.0, 9.0),
        solver=True,
    ),
)
