"""Leduc poker, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import leduc_poker_v0; leduc_poker_v0.env()``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.duels.leduc_poker import LeducPoker as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
