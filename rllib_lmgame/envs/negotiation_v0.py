"""Negotiation, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import negotiation_v0; negotiation_v0.env(protocol="open")``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.talk.negotiation.game import Negotiation as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
