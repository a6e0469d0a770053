"""Sessions of a game server: they are counted and limited.

Guarantees, each tested:

1. There are never more clients than places; one that leaves, or is cut off, frees its place and ends its game.
2. What one client waits for keeps no other waiting.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.envs.contract.splits import SPLIT_CHOICES
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.rollouts.game_calls import abandon, open_session
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import Sessions
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.servers.served_episode import Seating, ServedEpisode, seated

MOST_BYTES = 1 << 18
"""Of one message: the longest reply that a game reads, in any way to write it, is shorter."""
MOST_KEPT = 8
"""Games of one kind that are kept for the next clients."""
LONGEST_EPISODE_S = 7 * 86_400.0
MOST_SEED = 2**31 - 1
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


class FullError(RuntimeError):
    """All places are taken."""


@dataclass(frozen=True)
class ServedGame:
    """A game as clients find it.

    Attributes:
        name: Its name in addresses.
        config: Game and options.
        seating: Who plays where a client does not say it; ``None``: the client takes all seats.
        agents: Its seats.
        splits: Splits of its levels; none in games of others, whose seeds are all there is.
    """

    name: str
    config: GameConfig
    seating: Seating | None
    agents: tuple[str, ...]
    splits: tuple[str, ...]

    def at(self, split: str | None) -> GameConfig:
        """The game on levels of a split. Raises: ConfigError: there is no such split."""
        if split is None:
            return self.config
        if split not in self.splits:
            known = f"one of {', '.join(self.splits)}" if self.splits else "left out, the game has none"
            raise ConfigError("split", f"must be {known}, got {split[:100]!r}")
        return self.config.model_copy(update={"env_config": {**self.config.env_config, "split": split}})


@dataclass
class SessionPool:
    """The games and the places.

    Attributes:
        games: By name.
        most: Clients at the same time.
        idle_s: Seconds after which a client that says nothing has left.
        call_limit_s: Longest time for one call into a game.
        active: Clients that are there.
        begun: Games that were begun.
    """

    games: Mapping[str, ServedGame]
    most: int = 256
    idle_s: float = 600.0
    call_limit_s: float = CALL_LIMIT_S
    active: int = 0
    begun: int = 0
    sessions: Sessions = field(default_factory=partial(Sessions, MOST_KEPT))

    @contextmanager
    def place(self) -> Iterator[None]:
        """A client's place. Raises: FullError."""
        if self.active >= self.most:
            raise FullError(f"all {self.most} sessions are taken")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def begin(self, game: GameConfig, seating: Seating | None, seed: int | None) -> ServedEpisode:
        """Begin a game, on any level without a ``seed``; without ``seating`` the client takes all seats."""
        self.begun += 1
        level = secrets.randbelow(MOST_SEED) if seed is None else seed
        plan = EpisodePlan(f"served-{self.begun}", 0, level, "", 0)
        options = TextRolloutOptions(episode_timeout_s=LONGEST_EPISODE_S, env_step_timeout_s=self.call_limit_s)
        return ServedEpisode(game, seating, plan, self.sessions, options)


async def open_games(games: Mapping[str, GameConfig], seating: Seating | None = None) -> dict[str, ServedGame]:
    """The games by the names that addresses have, each built once to see that it can be played.

    Raises:
        ConfigError: a game cannot be built, has other seats, or shares its name with another one.
    """
    found: dict[str, ServedGame] = {}
    for name, config in games.items():
        short = address_name(name, found)
        try:
            session = await open_session(config, CALL_LIMIT_S)
        except EpisodeFailed as error:
            raise ConfigError("--games", f"{name} cannot be played: {error}") from None
        try:
            seated(seating, session)
            has_splits = "split" in getattr(options_of(config.env), "model_fields", ())
            splits = tuple(split for split in SPLIT_CHOICES if has_splits)
            found[short] = ServedGame(short, config, seating, session.agent_ids, splits)
        finally:
            abandon(session)
    return found


def address_name(name: str, taken: Iterable[str]) -> str:
    """A name for addresses: what follows the last slash or colon. Raises: ConfigError: it has none, or it is taken."""
    short = re.split(r"[/:]", name)[-1]
    if not _NAME.fullmatch(short):
        raise ConfigError(
            "--games", f"{name!r} is no name for an address; give it one of letters, digits and -: NAME=GAME"
        )
    if short.lower() in (other.lower() for other in taken):
        raise ConfigError("--games", f"two games are called {short!r}; give one another name: NAME=GAME")
    return short
