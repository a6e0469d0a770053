"""Werewolf, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import werewolf_v0; werewolf_v0.env(players=9)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.teams.werewolf.game import Werewolf as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
