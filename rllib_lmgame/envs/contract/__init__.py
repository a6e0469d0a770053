"""What a game derives from, for one player or for several, and what it raises and quotes."""

from rllib_lmgame.envs.contract.base import (
    GameError,
    InvalidAction,
    TextGame,
    TextGameOptions,
    Variant,
    quoted,
    read_word,
)
from rllib_lmgame.envs.contract.simultaneous import TextParallelGame, TextParallelOptions
from rllib_lmgame.envs.contract.tree import GameState, TextTreeGame
from rllib_lmgame.envs.contract.turns import TextAECGame, TextAECOptions

__all__ = [
    "GameError", "GameState", "InvalidAction", "TextAECGame", "TextAECOptions", "TextGame", "TextGameOptions",
    "TextParallelGame", "TextParallelOptions", "TextTreeGame", "Variant", "quoted", "read_word",
]  # fmt: skip
