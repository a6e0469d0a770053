"""Text games. Importing this package, or ``rllib_lmgame``, registers them (``gymnasium.make("lmgame/Sokoban-v0")``
works).
"""

from __future__ import annotations

from rllib_lmgame.envs.catalogue import register_all
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.envs.registry import GameSpec, game_spec, make, make_game, make_session, register_game

__all__ = [
    "GameError",
    "GameSession",
    "GameSpec",
    "Observation",
    "StepResult",
    "game_spec",
    "make",
    "make_game",
    "make_session",
    "register_game",
]

register_all()
