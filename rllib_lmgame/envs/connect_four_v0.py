"""ConnectFour, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import connect_four_v0; connect_four_v0.env(expert_depth=2)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.duels.connect_four import ConnectFour as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
