"""TextArena's games for several players, imported as PettingZoo's own games are:
``text_arena_v0.env(env_id="ConnectFour-v0")``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.adapted.text_arena.games import TextArenaMatch as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
