"""Sessions of a game server: they are counted and limited.

Guarantees, each tested:

1. There are never more clients than places; one that leaves, or is cut off, frees its place and ends its game.
2. What one client waits for keeps no other waiting.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.envs.contract.splits import SPLIT_CHOICES
from rllib_lmgame.envs.registry import game_spec, options_of
from rllib_lmgame.rollouts.game_calls import abandon, open_session
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import Sessions
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.servers.served_episode import GameLostError, Seating, ServedEpisode, View, seated

MOST_BYTES = 1 << 18
"""Of one message: the longest reply that a game reads, in any way to write it, is shorter."""
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

    @property
    def summary(self) -> str:
        """One line about the game."""
        return game_spec(self.config.env).summary or self.config.env


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
    sessions: Sessions = field(default_factory=Sessions)

    def enter(self) -> Client:
        """A place. Raises: FullError."""
        if self.active >= self.most:
            raise FullError(f"all {self.most} sessions are taken")
        self.active += 1
        return Client(self)


class Client:
    """One client's place, with one game at a time."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self.episode: ServedEpisode | None = None

    async def reset(self, game: ServedGame, seating: Seating | None, seed: int | None, split: str | None) -> View:
        """Leave the game in play, and begin another one.

        Args:
            game: Which.
            seating: Who plays; ``None``: as the server says.
            seed: Of the level; ``None``: any.
            split: Of the level; ``None``: the server's.

        Raises:
            GameLostError: it cannot be begun.
            ConfigError: it has no such split or seats.
        """
        config = game.at(split)
        level = secrets.randbelow(MOST_SEED) if seed is None else seed
        options = TextRolloutOptions(episode_timeout_s=LONGEST_EPISODE_S, env_step_timeout_s=self._pool.call_limit_s)
        await self._end_game()
        self._pool.begun += 1
        plan = EpisodePlan(f"served-{self._pool.begun}", 0, level, "", 0)
        seats = game.seating if seating is None else seating
        self.episode = ServedEpisode(config, seats, plan, self._pool.sessions, options)
        return await self.episode.next_view()

    async def reply(self, text: str) -> View:
        """Reply in the game. Raises: GameLostError: it is lost, over, or was not begun."""
        if self.episode is None:
            raise GameLostError("no game is begun; reset begins one")
        return await self.episode.reply(text)

    async def leave(self) -> None:
        """Give the place back; the game ends wherever it is."""
        self._pool.active -= 1
        await self._end_game()

    async def _end_game(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None:
            await episode.leave()


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
