"""Games whose engine is a package of its own."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = ()
