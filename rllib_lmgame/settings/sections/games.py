"""The games of a run: entries of ``games`` and of ``evaluation_config.games``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.schedules import ScheduleOptions, without_schedules
from rllib_lmgame.settings.schema import REQUIRED, build, option


@dataclass(frozen=True)
class GameConfig:
    """One game to be played."""

    env: str = option(REQUIRED, "Id of the game, or `package.module:Class`.")
    env_config: dict[str, Any] = option({}, "Its options, see [games](games.md).")
    weight: float = option(1.0, "Share of the episodes, relative to the other games.", low=0, schedulable=True)

    @property
    def key(self) -> str:
        """The same for the same game with the same configuration."""
        return f"{self.env}|{sorted(self.env_config.items(), key=lambda item: item[0])!r}"


def read_games(value: Any, path: str) -> tuple[tuple[GameConfig, ...], dict[str, ScheduleOptions]]:
    """Games from a YAML list of names or mappings, and their schedules by keys like ``games.0.weight``.

    Raises: ConfigError: names the wrong entry.
    """
    if isinstance(value, tuple) and all(isinstance(game, GameConfig) for game in value):
        return value, {}
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(path, "expected a list of games")
    games: list[GameConfig] = []
    schedules: dict[str, ScheduleOptions] = {}
    for position, entry in enumerate(value):
        where = f"{path}[{position}]"
        fields = {"env": entry} if isinstance(entry, str) else entry
        if not isinstance(fields, Mapping) or "env" not in fields:
            raise ConfigError(where, "expected the name of a game, or a mapping with env, env_config and weight")
        fields, found = without_schedules(GameConfig, fields, where)
        schedules |= {f"games.{position}.{key}": options for key, options in found.items()}
        fields = {key: value for key, value in fields.items() if key not in found or key != "weight"}
        games.append(build(GameConfig, fields, where))
        if games[-1].weight <= 0:
            raise ConfigError(f"{where}.weight", "must be greater than 0")
    return tuple(games), schedules
