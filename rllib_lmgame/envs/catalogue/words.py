"""Games of words and talk."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = ()
