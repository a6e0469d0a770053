"""Games whose option ``data`` names a file, or a data set with splits of its publisher."""

from __future__ import annotations

from typing import Any

from rllib_lmgame.downloads.places import LevelFiles, level_files
from rllib_lmgame.envs.support.listed_levels import ListedLevels


class PublishedLevels(ListedLevels):
    """Keeps the publisher's splits; what has none is split by hash.

    Raises: ConfigError: the data set is not known or not here, or has no such split.
    """

    lists_levels = "data"

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        data: str | None = self.options.data
        self.published = LevelFiles(()) if data is None else level_files(data, self.options.split)

    def split_of_level(self, digest: str, level: Any) -> str:
        return self.published.split_of(super().split_of_level(digest, level))
