"""Kuhn poker, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import kuhn_poker_v0; kuhn_poker_v0.env(players=3)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.duels.kuhn_poker import KuhnPoker as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
