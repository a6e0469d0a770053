"""The games of this package."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec, register_game

_ENVS = "rllib_lmgame.envs"

GAMES = (
    GameSpec(
        "lmgame/Sokoban-v0",
        f"{_ENVS}.sokoban:Sokoban",
        "Push a box onto its target, 6x6.",
        horizon=6,
        reward_range=(-2.0, 10.9),
        solver=True,
    ),
    GameSpec(
        "lmgame/SokobanLarge-v0",
        f"{_ENVS}.sokoban:Sokoban",
        "Sokoban 8x8, one box.",
        horizon=6,
        reward_range=(-2.0, 10.9),
        solver=True,
        defaults={"dim_room": (8, 8)},
    ),
    GameSpec(
        "lmgame/SokobanTwoBoxes-v0",
        f"{_ENVS}.sokoban:Sokoban",
        "Sokoban 8x8, two boxes.",
        horizon=6,
        reward_range=(-4.0, 12.0),
        solver=True,
        defaults={"dim_room": (8, 8), "num_boxes": 2},
    ),
)


def register_all() -> None:
    """Make all games known."""
    for spec in GAMES:
        register_game(spec)
