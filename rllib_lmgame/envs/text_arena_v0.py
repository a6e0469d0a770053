"""TextArena's games for several players, imported as PettingZoo's own games are: ``text_arena_v0.env(env_id="ConnectFour-v0")``."""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from rllib_lmgame.envs.text_arena.games import TextArenaMatch as raw_env

__all__ = ["env", "raw_env"]


def env(render_mode: str | None = None, **env_config: Any) -> OrderEnforcingWrapper[str, str, str]:
    """The game, with an error for calls that come before ``reset``.

    Raises:
        ConfigError: for an unknown key or an impossible value.
    """
    return OrderEnforcingWrapper(raw_env(render_mode, **env_config))
