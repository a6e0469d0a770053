"""OpenSpiel's games, imported as PettingZoo's own games are: ``from rllib_lmgame.envs import open_spiel_v0;
open_spiel_v0.env(game="goofspiel", parameters={"num_cards": 4})``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.adapted.open_spiel.game import OpenSpielGame as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
