"""Text games. Importing this package registers them: ``make("lmgame/KuhnPoker-v0")`` works, and for those of one player
``gymnasium.make("lmgame/Sokoban-v0")``. No game is imported before it is made.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.envs.registry import (
    GameSpec,
    game_spec,
    make,
    make_game,
    make_session,
    register_game,
    register_own_games,
)

__all__ = [
    "GameError", "GameSession", "GameSpec", "Observation", "StepResult", "game_spec", "make", "make_game",
    "make_session", "register_game",
]  # fmt: skip

if __name__ == "rllib_lmgame.envs":
    register_own_games()
else:  # By the link at the top of the repository.
    import importlib
    import sys

    sys.modules[__name__] = importlib.import_module("rllib_lmgame.envs")
