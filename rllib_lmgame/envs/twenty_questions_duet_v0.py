"""TwentyQuestionsDuet, imported as PettingZoo's own games are: ``from rllib_lmgame.envs import
twenty_questions_duet_v0; twenty_questions_duet_v0.env(max_turns=10)``.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.makers import maker_of
from rllib_lmgame.envs.games.talk.twenty_questions_duet import TwentyQuestionsDuet as raw_env

__all__ = ["env", "raw_env"]

env = maker_of(raw_env)
