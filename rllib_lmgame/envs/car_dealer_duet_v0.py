"""CarDealerDuet, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import car_dealer_duet_v0; car_dealer_duet_v0.env(reward="surplus")``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.talk.car_dealer_duet.game import CarDealerDuet as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
