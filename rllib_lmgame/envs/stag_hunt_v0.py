"""The stag hunt, imported as PettingZoo's own games are: ``from rllib_lmgame.envs
import stag_hunt_v0; stag_hunt_v0.parallel_env()``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.dilemmas.stag_hunt import StagHunt as raw_env

__all__ = ["parallel_env", "raw_env"]

parallel_env = maker_of(raw_env)
