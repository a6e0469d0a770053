"""TicTacToe, imported as PettingZoo's own games are: ``from rllib_lmgame.envs import tic_tac_toe_v0; tic_tac_toe_v0.env()``."""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from rllib_lmgame.envs.tic_tac_toe import TicTacToe as raw_env

__all__ = ["env", "raw_env"]


def env(render_mode: str | None = None, **env_config: Any) -> OrderEnforcingWrapper[str, str, str]:
    """The game, with an error for calls that come before ``reset``.

    Raises:
        ConfigError: for an unknown key or an impossible value.
    """
    return OrderEnforcingWrapper(raw_env(render_mode, **env_config))
