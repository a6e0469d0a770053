"""Boards at which tournaments and evaluations play their episodes side by side."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode, SeatFactory, Sessions, play_one
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

T = TypeVar("T")

MISCONFIGURED = "misconfigured"
"""Reason of a game in which a player found that it cannot play it."""


async def side_by_side(plans: Iterable[T], one: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Await ``one`` of each plan, ``at_once`` at the same time and begun in order."""
    queue = collections.deque(plans)

    async def board() -> None:
        while queue:
            await one(queue.popleft())
            await asyncio.sleep(0)  # Scripted players never wait for anything.

    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(queue), at_once)):
            group.create_task(board())


async def played_or_failed(
    plan: EpisodePlan, game: GameConfig, seats: SeatFactory, sessions: Sessions, options: TextRolloutOptions
) -> PlayedEpisode | Failure:
    """As :func:`~rllib_lmgame.rollouts.play.play_one`, but a player who cannot play a game fails in that game alone."""
    try:
        return await play_one(plan, game, seats, sessions, options)
    except ConfigError as error:
        return Failure(plan, MISCONFIGURED, str(error))
