"""TicTacToe, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import tic_tac_toe_v0; tic_tac_toe_v0.env()``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
