"""Games for several players, imported as PettingZoo's own are: ``kuhn_poker_v0.env(players=3)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from rllib_lmgame.envs.contract.simultaneous import TextParallelGame
from rllib_lmgame.envs.contract.turns import TextAECGame


@overload
def maker_of(game: type[TextAECGame]) -> Callable[..., OrderEnforcingWrapper[str, str, str]]: ...


@overload
def maker_of(game: type[TextParallelGame]) -> Callable[..., TextParallelGame]: ...


def maker_of(game: type[TextAECGame] | type[TextParallelGame]) -> Callable[..., Any]:
    """What the module of ``game`` offers as ``env``, or as ``parallel_env`` where all reply at once.

    It takes ``render_mode`` and the game's options. An unknown key or an impossible value raises
    :class:`~rllib_lmgame.errors.ConfigError`. Calls before ``reset`` end in an error: by PettingZoo's wrapper for games
    in turns, by the game itself where all reply at once.
    """

    def make(render_mode: str | None = None, **env_config: Any) -> Any:
        env = game(render_mode, **env_config)
        return OrderEnforcingWrapper(env) if isinstance(env, TextAECGame) else env

    return make
