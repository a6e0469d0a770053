"""Liar's Dice, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import liars_dice_v0; liars_dice_v0.env(sides=4)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.duels.liars_dice import LiarsDice as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
