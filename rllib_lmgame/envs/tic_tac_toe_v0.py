"""TicTacToe, imported as PettingZoo's own games are: ``from rllib_lmgame.envs import tic_tac_toe_v0; tic_tac_toe_v0.env()``."""

from __future__ import annotations

from rllib_lmgame.envs.tic_tac_toe import TicTacToe as raw_env
from rllib_lmgame.envs.turns import maker_of

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
