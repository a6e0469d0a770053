"""Games for several players, imported as PettingZoo's own are: ``from rllib_lmgame.envs import kuhn_poker_v0``.

Each such module is made from the index. It has ``env`` (``parallel_env`` where all reply at once) and ``raw_env``, the
class, and imports the game when one of them is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rllib_lmgame.envs.registry import GameSpec, load_factory, own_games

_PACKAGE = __name__.rpartition(".")[0]


class GameModule(ModuleType):
    """``rllib_lmgame.envs.NAME_v0``."""

    def __init__(self, spec: GameSpec) -> None:
        name = f"{_PACKAGE}.{spec.module}"
        super().__init__(name, spec.summary)
        self.__spec__ = ModuleSpec(name, None)
        self.__all__ = ["env" if spec.kind == "aec" else "parallel_env", "raw_env"]
        self._game = spec

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("__all__", ()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        game = load_factory(self._game)
        return game if name == "raw_env" else maker_of(game)


def maker_of(game: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes the game, which refuses calls that come before ``reset``. It takes ``render_mode`` and the
    game's options, and raises :class:`~rllib_lmgame.base.errors.ConfigError` as the game does.
    """

    def make(render_mode: str | None = None, **env_config: Any) -> Any:
        from pettingzoo import AECEnv
        from pettingzoo.utils.wrappers import OrderEnforcingWrapper

        env = game(render_mode, **env_config)
        return OrderEnforcingWrapper(env) if isinstance(env, AECEnv) else env  # Parallel games say it themselves.

    return make


def add_game_modules() -> None:
    """Make the modules of all games for several players known to Python."""
    for spec in own_games().values():
        if spec.module:
            module = GameModule(spec)
            sys.modules[module.__name__] = module
            setattr(sys.modules[_PACKAGE], spec.module, module)
