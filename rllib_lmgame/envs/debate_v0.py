"""Debate, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import debate_v0; debate_v0.env(speeches=3)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.talk.debate.game import Debate as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
