"""DeepSearch: answer a question by searching a corpus, hop by hop."""

from __future__ import annotations

from rllib_lmgame.envs.games.web.deep_search.game import DeepSearch, DeepSearchOptions

__all__ = ["DeepSearch", "DeepSearchOptions"]
