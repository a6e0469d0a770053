"""Episodes that are played side by side, each written down as it ends, and the directory that holds them.

1. An episode stands in its file whole or not at all; half a line, left by a full disk or a kill, is cut off later.
2. A second process is refused, and what was played with other settings.
3. A failed episode is written down with its reason, counts for nobody, and is played again by the same command.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rllib_lmgame.algorithms.games import found_beside
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import first_difference, read_mapping, write_json
from rllib_lmgame.base.lock import locked
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import one_line, shown
from rllib_lmgame.datasets.files import records_of
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.episode_log import EpisodeLog
from rllib_lmgame.rollouts.game_calls import abandon, open_session
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode, Sessions, play_one
from rllib_lmgame.rollouts.players import Player, take_seats
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, Seat
from rllib_lmgame.rollouts.sources import Roles

FAILURES_FILE = "failures.jsonl"
MAX_SETTINGS_BYTES = 4_000_000
MISCONFIGURED = "misconfigured"
"""Reason of a game in which a player found that it cannot play it."""
NOT_READ = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a record raises that is none."""

T = TypeVar("T")
Key = TypeVar("Key")
"""Tells an episode from the others of a directory."""


@dataclass
class RecordedGames(Generic[Key]):
    """Plays plans, as many side by side as it is told, begun in order; ``directory`` keeps what becomes of each.

    Attributes:
        keep: Counts a played episode; returns its record. A ValueError makes it a failure.
        ended: Called when an episode ends.
        failures: Records of the episodes without an end, with the players because of whom (``failed``), if any.
    """

    directory: RecordDirectory | None
    keep: Callable[[Key, PlayedEpisode], Mapping[str, Any]]
    ended: Callable[[], object]
    failures: dict[Key, dict[str, Any]] = field(default_factory=dict)

    async def play(
        self,
        plans: Mapping[Key, EpisodePlan],
        games: Sequence[GameConfig],
        player_of: Callable[[AgentAssignment, GameConfig], Player],
        sessions: Sessions,
        options: TextRolloutOptions,
        at_once: int,
    ) -> None:
        """Raises: OSError: an episode could not be written; as :func:`~rllib_lmgame.rollouts.play.play_one`."""
        queue = collections.deque(plans.items())

        async def one_after_the_other() -> None:
            while queue:
                key, plan = queue.popleft()
                game, seats = games[plan.game], dict[str, Seat]()

                def sit(
                    session: GameSession, plan: EpisodePlan, game: GameConfig = game, seats: dict[str, Seat] = seats
                ) -> dict[str, Seat]:
                    seats.update(take_seats(session, plan, lambda assignment: player_of(assignment, game)))
                    return seats

                try:
                    played = await play_one(plan, game, sit, sessions, options)
                except ConfigError as error:  # A player who cannot play a game fails in that game alone.
                    played = Failure(plan, MISCONFIGURED, str(error))
                self._note(key, played, game, sorted({seat.module_id for seat in seats.values() if seat.failed}))
                await asyncio.sleep(0)  # Scripted players never wait for anything.

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(queue), at_once)):
                group.create_task(one_after_the_other())

    def _note(self, key: Key, played: PlayedEpisode | Failure, game: GameConfig, failed: list[str]) -> None:
        record: Mapping[str, Any] = {}
        if isinstance(played, PlayedEpisode):
            try:
                record = self.keep(key, played)
            except ValueError as error:
                played = Failure(played.plan, StopReason.ENV_ERROR.value, f"{game.env}: {error}")
        if isinstance(played, Failure):
            plan = played.plan
            record = self.failures[key] = {
                "episode_id": plan.episode_id,
                "game": game.env,
                "seed": plan.seed,
                "players": {agent: assignment.module_id for agent, assignment in plan.assignments.items()},
                "failed": failed,
                "reason": played.reason,
                "message": played.message,
            }
        if self.directory is not None:
            self.directory.add(record, failed=key in self.failures)
        self.ended()


class RecordDirectory:
    what: ClassVar[str]
    """What is played in it, as errors call it."""
    settings_file: ClassVar[str]
    records_file: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)
        self._records = EpisodeLog(self.path / self.records_file)
        self._failures = EpisodeLog(self.path / FAILURES_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out while inside. Raises: ConfigError: if another is in."""
        taken = f"another process plays the {self.what} in {self.path}"
        with locked(self.path, "--out", taken, "name another directory, or wait for its end"):
            yield

    def settings(self) -> dict[str, Any] | None:
        """What was played there, ``None`` if nothing was. Raises: ConfigError: something else is there."""
        file = self.path / self.settings_file
        if not file.exists():
            if (self.path / self.records_file).exists():
                missing = f"{self.path} holds {self.records_file}, but no {self.settings_file}; name another one"
                raise ConfigError("--out", missing)
            return None
        try:
            return read_mapping(file, MAX_SETTINGS_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError("--out", str(error)) from None

    def refuse(self, different: str | None) -> None:
        """Raise :class:`ConfigError` if something is ``different``."""
        if different is not None:
            raise ConfigError("--out", f"{self.path} holds another {self.what}: {different}; name another directory")

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin or go on with what has these settings; the directory is now taken."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / FAILURES_FILE).unlink()
        if self.settings() != plain(settings):
            write_json(self.path / self.settings_file, settings, indent=1)

    def results(self, read: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
        """What ``read`` makes of each episode that was played.

        Half a line at the end is cut off. Raises: ConfigError: a line is no record.
        """
        path = self.path / self.records_file
        if not path.exists():
            return
        _cut_after_last_line(path)
        for where, record in records_of(path):
            try:
                yield read(record)
            except NOT_READ as error:
                why = f"no record of an episode of this {self.what} ({one_line(shown(error, 200))})"
                raise ConfigError("--out", f"{where}: {why}") from None

    def add(self, record: Mapping[str, Any], *, failed: bool = False) -> None:
        """Write the record of an episode. Raises: OSError: if it could not be written."""
        (self._failures if failed else self._records).write([dict(record)])


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read


def _cut_after_last_line(path: Path) -> None:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)


def difference(there: Any, wanted: Any) -> str | None:
    """The first thing in which two values of plain data differ, in words; ``None`` if they are the same."""
    if (found := first_difference(there, wanted)) is None:
        return None
    path, before, now = found
    return f"{'.'.join(path)} was {shown(before)}, now it is {shown(now)}"


async def roles_of(game: GameConfig, timeout_s: float, flag: str, *, beside: bool = True) -> Roles:
    """The roles of a game. Raises: ConfigError: it cannot be built, or what it needs ``beside`` it is not there."""
    try:
        if beside:
            await asyncio.to_thread(found_beside, game)
        session = await open_session(game, timeout_s)
    except ConfigError as error:
        raise ConfigError(flag, f"{game.env}: {error}") from None
    except EpisodeFailed as failure:
        raise ConfigError(flag, str(failure)) from None
    abandon(session)
    return dict(session.roles)
