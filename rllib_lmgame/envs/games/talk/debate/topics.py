"""What is debated: statements, with points that speak for and against them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.splits import split_few
from rllib_lmgame.envs.support.datasets import open_data, package_lines

PRO, CON = "PRO", "CON"


@dataclass(frozen=True)
class Topic:
    """A statement and what may be said of it.

    Attributes:
        statement: What PRO is for and CON against.
        pro: Points for it, clauses without a full stop.
        con: Points against it.
    """

    statement: str
    pro: tuple[str, ...]
    con: tuple[str, ...]

    def points(self, side: str) -> tuple[str, ...]:
        """The points of a side."""
        return self.pro if side == PRO else self.con


def parse_topics(lines: Iterable[str], where: str, key: str = "env_config.data") -> tuple[Topic, ...]:
    """Topics written as ``statement | point; point | point; point``, for and against.

    Raises: ConfigError: for a line in another form, a statement that is there twice, or fewer topics than splits.
    """
    topics = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        points = [tuple(point.strip() for point in part.split(";") if point.strip()) for part in parts[1:]]
        if len(parts) != 3 or not parts[0] or not all(points):
            raise ConfigError(key, f"{where}, line {number}: expected statement | points for it | points against it")
        topics.append(Topic(parts[0], *points))
    if len({topic.statement for topic in topics}) < max(3, len(topics)):
        raise ConfigError(key, f"{where} must have three topics or more, each once")
    return tuple(topics)


def read_topics(path: str, key: str = "env_config.data") -> tuple[Topic, ...]:
    """Topics of a file of one's own. Raises: ConfigError: for a file that cannot be read or has other lines."""
    with open_data(path, key) as file:
        return parse_topics(file, path, key)


@cache
def own_topics() -> tuple[Topic, ...]:
    """The topics of this package."""
    return parse_topics(package_lines("debate_topics.txt"), "debate_topics.txt")


def splits_of(topics: Iterable[Topic]) -> dict[str, str]:
    """The split of each statement."""
    return split_few(topic.statement for topic in topics)
